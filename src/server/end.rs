//! The end of a server: nothing accepted is lost, within the time there is.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use tokio::{
    task::spawn_blocking,
    time::{timeout, timeout_at},
};

use super::doors::Doors;
use troupe_backends::Backends;
use troupe_gateway::ServerState;

/// What worker processes have at the end, a little more than one has to finalize its model.
const WORKERS_GRACE: Duration = Duration::from_secs(3);
/// What the last traces have to be written or sent.
const TRACES_GRACE: Duration = Duration::from_secs(5);
/// What a door has at the end to write answers that are ready.
pub(super) const LAST_GRACE: Duration = Duration::from_millis(200);

/// Refuses new requests, lets accepted ones finish all their steps, ends workers.
pub(super) async fn end(
    gate: ServerState,
    backends: Backends,
    doors: Doors,
    grace: Duration,
) -> ExitCode {
    let deadline = Instant::now() + grace;
    gate.lifecycle.exit();
    tracing::info!("Waiting for in-flight requests to complete.");
    let is_finished = timeout_at(deadline.into(), finish(&gate, deadline)).await.is_ok();
    if !is_finished {
        tracing::error!("Exit timeout expired. Exiting immediately.");
    }
    // Models go with their last owner, and their workers with them.
    gate.repository.control.end();
    let tracer = gate.tracer.clone();
    drop(gate);
    let grace = if is_finished { WORKERS_GRACE } else { Duration::ZERO };
    let workers_until = deadline.min(Instant::now() + grace);
    let _ = spawn_blocking(move || backends.wait_for_workers(workers_until)).await;
    // The HTTP gateway's threads are the engine's, so it goes last. Answers that are ready are
    // still written; idle connections are not waited for.
    doors.close(if is_finished { LAST_GRACE } else { Duration::ZERO }).await;
    // What is traced has ended with its response. A collector that does not answer is not waited
    // for longer than anything else is.
    let traces_until = deadline.min(Instant::now() + TRACES_GRACE);
    if timeout_at(traces_until.into(), tracer.end()).await.is_err() {
        tracing::warn!("Traces that were not written or sent in time are lost.");
    }
    if is_finished { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Says once a second what is waited for.
async fn finish(gate: &ServerState, deadline: Instant) {
    let mut idle = std::pin::pin!(gate.lifecycle.wait_idle());
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_secs();
        let count = gate.lifecycle.in_flight();
        tracing::info!("Timeout {left}: Found {count} inferences in flight");
        if timeout(Duration::from_secs(1), &mut idle).await.is_ok() {
            return;
        }
    }
}
