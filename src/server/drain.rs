//! Drains a server: refuses new requests, finishes those in flight within the grace period.

use std::time::{Duration, Instant};

use tokio::{
    task::spawn_blocking,
    time::{timeout, timeout_at},
};

use super::{ending::Ending, listeners::Listeners};
use troupe_backends::Backends;
use troupe_gateway::ServerState;

/// What worker processes have at the end, a little more than one has to finalize its model.
const WORKERS_GRACE: Duration = Duration::from_secs(3);
/// What the last traces have to be written or sent.
const TRACES_GRACE: Duration = Duration::from_secs(5);
/// What a listener has at the end to write answers that are ready.
const LISTENERS_GRACE: Duration = Duration::from_millis(200);

/// Refuses new requests, lets accepted ones finish all their steps, ends workers.
pub(super) async fn drain(
    state: &ServerState,
    backends: Backends,
    listeners: Listeners,
    grace: Duration,
) -> Ending {
    let deadline = Instant::now() + grace;
    state.lifecycle.exit();
    tracing::info!("Waiting for in-flight requests to complete.");
    let is_finished = timeout_at(deadline.into(), finish(state, deadline)).await.is_ok();
    if !is_finished {
        tracing::error!("Exit timeout expired. Exiting immediately.");
    }
    // Models go with their last owner, and their workers with them.
    state.repository.control.end();
    let grace = if is_finished { WORKERS_GRACE } else { Duration::ZERO };
    let workers_until = deadline.min(Instant::now() + grace);
    // It only fails if it panics.
    let _ = spawn_blocking(move || backends.wait_for_workers(workers_until)).await;
    // The HTTP gateway's threads are the engine's, so it goes last. Answers that are ready are
    // still written; idle connections are not waited for.
    listeners.close(if is_finished { LISTENERS_GRACE } else { Duration::ZERO }).await;
    // What is traced has ended with its response. A collector that does not answer is not waited
    // for longer than anything else is.
    let traces_until = deadline.min(Instant::now() + TRACES_GRACE);
    if timeout_at(traces_until.into(), state.tracer.end()).await.is_err() {
        tracing::warn!("Traces that were not written or sent in time are lost.");
    }
    if is_finished { Ending::Drained } else { Ending::Aborted }
}

/// Logs once a second what is waited for.
async fn finish(state: &ServerState, deadline: Instant) {
    let mut idle = std::pin::pin!(state.lifecycle.wait_idle());
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_secs();
        let count = state.lifecycle.in_flight();
        if 0 < count {
            tracing::info!("{count} requests in flight, which have {left} s (--exit-timeout-secs)");
        }
        if timeout(Duration::from_secs(1), &mut idle).await.is_ok() {
            return;
        }
    }
}
