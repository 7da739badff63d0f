//! Restarts workers: follows one to its end, then starts another, with back-off.

use std::{
    cell::RefCell,
    future::Future,
    rc::Weak,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::time::sleep;

use super::{
    connection::{FrameSource, WorkerConnection, connect, read},
    in_flight::deliver,
    link::{InstanceSetup, WorkerLink, WorkerState, unhealthy},
};
use crate::python::process::{launch::launch, worker_process::WorkerEnd};
use troupe_base::{backoff::Backoff, error::Error, failure_log::on_one_line};

/// How long to read what a worker has sent before it ended, if its socket does not end with it:
/// a process it has forked may have it too.
const DRAIN_TIME: Duration = Duration::from_millis(100);
/// How often an instance without a worker looks whether others have one.
const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// Reads frames until the worker ends, then starts another, as long as the instance lives.
pub(crate) async fn attend(link: Weak<RefCell<WorkerLink>>, mut source: FrameSource) {
    let mut backoff = Backoff::default();
    loop {
        let events = source.events.clone();
        let handle_frame = |frame: &Bytes| {
            let Some(held) = link.upgrade() else {
                events.log_last(frame[4], &frame[8..]);
                return Ok(());
            };
            let delivered = held.borrow_mut().handle_frame(frame, &link)?;
            deliver(delivered);
            Ok(())
        };
        let Some(reaped) = reaped(&link) else { return };
        let read = tokio::select! {
            biased;
            read = read(&mut source.reader, handle_frame) => read,
            () = reaped => Ok(()),
        };
        let Some(next) = restart(&link, read.err(), &mut backoff).await else { return };
        source = next;
    }
}

/// Done a moment after the worker is reaped.
fn reaped(link: &Weak<RefCell<WorkerLink>>) -> Option<impl Future<Output = ()> + use<>> {
    let held = link.upgrade()?;
    let WorkerState::Up(connection) = &held.borrow().state else { return None };
    let reaped = connection.process.reaped();
    Some(async {
        reaped.await;
        sleep(DRAIN_TIME).await;
    })
}

/// Fails what the dead worker had begun, and starts another; `None` once the instance has gone.
async fn restart(
    link: &Weak<RefCell<WorkerLink>>,
    broken: Option<String>,
    backoff: &mut Backoff,
) -> Option<FrameSource> {
    let (setup, connection, overrun, is_proven) = {
        let held = link.upgrade()?;
        let mut it = held.borrow_mut();
        let why = unhealthy(&it.setup, "a new worker is being started");
        let down = WorkerState::Down { why, is_brief: true };
        let WorkerState::Up(connection) = std::mem::replace(&mut it.state, down) else {
            return None;
        };
        it.generation += 1;
        let is_proven = std::mem::take(&mut it.is_proven);
        (it.setup.clone(), connection, it.overrun.take(), is_proven)
    };
    setup.health.down();
    if broken.is_some() {
        connection.process.kill();
    }
    let WorkerEnd { how, stderr } = connection.process.ending().await;
    let how = match (overrun, broken) {
        (Some(overrun), _) => overrun.text,
        (None, Some(broken)) => format!("it sent {broken} and was killed"),
        (None, None) => how,
    };
    let text = unhealthy(&setup, &format!("{how}; {stderr}"));
    let begun = connection.progress.begun();
    connection.process.events.let_go();
    drop(connection);
    if setup.spec.reaper.is_closing() {
        // The server ends, and its workers with it: no other one will come.
        let held = link.upgrade()?;
        let why = "the server is stopping".to_owned();
        let events = held.borrow_mut().give_up(&Error::unavailable(why.as_str()), begun);
        held.borrow_mut().state = WorkerState::Down { why, is_brief: false };
        deliver(events);
        let waiting = held.borrow_mut().take_more();
        drop(waiting);
        return None;
    }
    log(&setup, &text);
    let error = Error::crashed(text.as_str());
    let events = link.upgrade()?.borrow_mut().give_up(&error, begun);
    deliver(events);
    let (mut pause, mut text) = (backoff.ended(is_proven), text);
    loop {
        if !pause.is_zero() {
            rest(link, &setup, &text, pause).await?;
        }
        match start(link, &setup).await? {
            Ok((connection, source)) => {
                let held = link.upgrade()?;
                held.borrow_mut().state = WorkerState::Up(Box::new(connection));
                setup.health.up();
                let waiting = held.borrow_mut().take_more();
                drop(held);
                drop(waiting);
                return Some(source);
            }
            Err(error) => text = unhealthy(&setup, &error.to_string()),
        }
        log(&setup, &text);
        pause = backoff.refused();
    }
}

fn log(setup: &InstanceSetup, text: &str) {
    let model = &setup.config.name;
    let text = on_one_line(text);
    tracing::error!(target: "troupe::python", %model, "{text}");
}

/// A new worker, or why there is none.
async fn start(
    link: &Weak<RefCell<WorkerLink>>,
    setup: &InstanceSetup,
) -> Option<Result<(WorkerConnection, FrameSource), Error>> {
    let spec = setup.spec.clone();
    let pool = spec.pool.clone();
    let launched = setup.spec.reaper.spawn_blocking(move || launch(&spec)).await;
    link.upgrade()?;
    Some(match launched {
        Ok(Ok(launched)) => connect(launched, pool),
        Ok(Err(failed)) => Err(failed.error),
        Err(error) => Err(Error::internal(error.to_string())),
    })
}

/// Waits. Meanwhile requests fail unless another instance can take them.
async fn rest(
    link: &Weak<RefCell<WorkerLink>>,
    setup: &InstanceSetup,
    text: &str,
    pause: Duration,
) -> Option<()> {
    let why = format!("{text}\nNext attempt within {} ms", pause.as_millis());
    setup.health.stays_down(&why);
    link.upgrade()?.borrow_mut().state = WorkerState::Down { why, is_brief: false };
    let end = Instant::now() + pause;
    loop {
        let held = link.upgrade()?;
        if !setup.health.is_ready() {
            let waiting = held.borrow_mut().take_more();
            drop(waiting);
        }
        drop(held);
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(());
        }
        sleep(left.min(HEALTH_INTERVAL)).await;
    }
}
