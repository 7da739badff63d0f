//! Follows a worker to its end, and starts another as long as its instance lives.

use std::{
    cell::RefCell,
    future::Future,
    rc::Weak,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::time::sleep;

use crate::python::process::reaper::reaper;
use crate::python::process::worker_process::WorkerEnd;
use crate::python::process::worker_process::launch;
use crate::python::worker::backoff::Backoff;
use crate::python::worker::connection::Connection;
use crate::python::worker::connection::FrameSource;
use crate::python::worker::connection::connect;
use crate::python::worker::connection::read;
use crate::python::worker::in_flight::tell;
use crate::python::worker::link::InstanceSetup;
use crate::python::worker::link::Link;
use crate::python::worker::link::State;
use crate::python::worker::link::unhealthy;
use troupe_base::error::Error;

/// How long to read what a worker has sent before it ended, if its socket does not end with it:
/// a process it has forked may have it too.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How often an instance without a worker looks whether others have one.
const LOOK: Duration = Duration::from_millis(100);

/// Reads frames until the worker ends, then starts another, as long as the instance lives.
pub(crate) async fn attend(link: Weak<RefCell<Link>>, (mut reader, mut events): FrameSource) {
    let mut backoff = Backoff::default();
    loop {
        let obey = |frame: &Bytes| {
            let Some(held) = link.upgrade() else {
                events.log_last(frame[4], &frame[8..]);
                return Ok(());
            };
            let news = held.borrow_mut().obey(frame, &link)?;
            tell(news);
            Ok(())
        };
        let Some(reaped) = reaped(&link) else { return };
        let read = tokio::select! {
            biased;
            read = read(&mut reader, obey) => read,
            () = reaped => Ok(()),
        };
        let Some(next) = revive(&link, read.err(), &mut backoff).await else { return };
        (reader, events) = next;
    }
}

/// Done a moment after the worker is reaped.
fn reaped(link: &Weak<RefCell<Link>>) -> Option<impl Future<Output = ()> + use<>> {
    let held = link.upgrade()?;
    let State::Up(connection) = &held.borrow().state else { return None };
    let reaped = connection.process.reaped();
    Some(async {
        reaped.await;
        sleep(LAST_WORDS).await;
    })
}

/// Fails what the dead worker had begun, and starts another; `None` once the instance has gone.
async fn revive(
    link: &Weak<RefCell<Link>>,
    broken: Option<String>,
    backoff: &mut Backoff,
) -> Option<FrameSource> {
    let (setup, connection, late, is_proven) = {
        let held = link.upgrade()?;
        let mut it = held.borrow_mut();
        let why = unhealthy(&it.setup, "a new worker is being started");
        let down = State::Down { why, is_brief: true };
        let State::Up(connection) = std::mem::replace(&mut it.state, down) else { return None };
        let is_proven = std::mem::take(&mut it.is_proven);
        (it.setup.clone(), connection, it.late.take(), is_proven)
    };
    setup.health.down();
    if broken.is_some() {
        connection.process.kill();
    }
    let WorkerEnd { how, said } = connection.process.ending().await;
    let how = match (late, broken) {
        (Some(late), _) => late.text,
        (None, Some(broken)) => format!("it sent {broken} and was killed"),
        (None, None) => how,
    };
    let text = unhealthy(&setup, &format!("{how}; {said}"));
    let begun = connection.progress.begun();
    connection.process.events.let_go();
    drop(connection);
    log(&setup, &text);
    let news = link.upgrade()?.borrow_mut().give_up(&Error::unavailable(text.as_str()), begun);
    tell(news);
    let (mut pause, mut text) = (backoff.ended(is_proven), text);
    loop {
        if !pause.is_zero() {
            rest(link, &setup, &text, pause).await?;
        }
        match start(link, &setup).await? {
            Ok((connection, voice)) => {
                let held = link.upgrade()?;
                held.borrow_mut().state = State::Up(Box::new(connection));
                setup.health.up();
                let waiting = held.borrow_mut().take_more();
                drop(held);
                drop(waiting);
                return Some(voice);
            }
            Err(error) => text = unhealthy(&setup, &error.to_string()),
        }
        log(&setup, &text);
        pause = backoff.refused();
    }
}

fn log(setup: &InstanceSetup, text: &str) {
    let model = &setup.config.name;
    tracing::error!(target: "troupe::python", %model, "{}", text.replace('\n', " | "));
}

/// A new worker, or why there is none.
async fn start(
    link: &Weak<RefCell<Link>>,
    setup: &InstanceSetup,
) -> Option<Result<(Connection, FrameSource), Error>> {
    let spec = setup.spec.clone();
    let pool = spec.pool.clone();
    let launched = reaper().spawn_blocking(move || launch(&spec)).await;
    link.upgrade()?;
    Some(match launched {
        Ok(Ok(launched)) => connect(launched, pool),
        Ok(Err(refused)) => Err(refused.error),
        Err(error) => Err(Error::internal(error.to_string())),
    })
}

/// Waits. Meanwhile requests fail unless another instance can take them.
async fn rest(
    link: &Weak<RefCell<Link>>,
    setup: &InstanceSetup,
    text: &str,
    pause: Duration,
) -> Option<()> {
    let why = format!("{text}\nNext attempt within {} ms", pause.as_millis());
    link.upgrade()?.borrow_mut().state = State::Down { why, is_brief: false };
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
        sleep(left.min(LOOK)).await;
    }
}
