//! Housekeeping of a worker: sweeps shared memory that nobody uses, answers callers that have gone,
//! ends a worker that was stopped.

use std::{
    cell::RefCell,
    rc::Weak,
    time::{Duration, Instant},
};

use super::{
    in_flight::{GroupEvents, InFlightGroup, deliver, failed},
    link::{Overrun, WorkerLink, WorkerState},
};
use crate::python::{
    process::stopped::{StoppedLooks, WAS_STOPPED},
    protocol::encode,
};
use troupe_base::error::Error;

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Has an idle worker free its shared memory, and unmap what we have freed.
pub(crate) async fn sweep(link: Weak<RefCell<WorkerLink>>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(held) = link.upgrade() else { return };
        let events = held.borrow_mut().sweep();
        drop(held);
        deliver(events);
    }
}

impl WorkerLink {
    fn sweep(&mut self) -> GroupEvents {
        let was_idle = std::mem::replace(&mut self.is_idle, true);
        if let WorkerState::Up(connection) = &mut self.state {
            connection.segments.sweep();
            let has_ended = !was_idle && self.in_flight.is_empty();
            let is_full = connection.segments.pool.check_room().is_err();
            if was_idle && connection.segments.has_updates() || has_ended || is_full {
                let flags = if was_idle || is_full { encode::TRIM } else { 0 };
                encode::segment_updates(&mut self.frame, &mut connection.segments, flags);
                connection.write(&self.frame);
            }
        }
        self.end_stopped();
        self.answer_cancelled()
    }

    /// A worker that was stopped (SIGSTOP) would keep its requests for ever.
    fn end_stopped(&mut self) {
        let has_work = !self.in_flight.is_empty() || self.detached.requests().next().is_some();
        let WorkerState::Up(connection) = &self.state else {
            self.stopped_looks = StoppedLooks::default();
            return;
        };
        let is_stopped = has_work && connection.process.is_stopped();
        if self.stopped_looks.add(is_stopped) && self.overrun.is_none() {
            let text = WAS_STOPPED.to_owned();
            self.overrun = Some(Overrun { text, since: Instant::now() });
            connection.process.kill();
        }
    }

    /// Whoever has gone is answered while the worker still runs: the answer may be all that keeps
    /// an unloaded model, and with it this worker, alive.
    fn answer_cancelled(&mut self) -> GroupEvents {
        self.detached.answer_cancelled();
        let flights = self.in_flight.iter().flat_map(|flight| {
            let groups = flight.groups.iter().enumerate();
            groups.map(move |(group, it)| (&flight.done, group, it))
        });
        let stopped = |group: &InFlightGroup| {
            let requests = group.requests.as_ref()?;
            let first = requests.first().map(|request| request.context.stopped());
            let is_gone = requests.iter().all(|request| request.context.is_stopped());
            is_gone.then(|| first.flatten().unwrap_or_else(Error::cancelled))
        };
        flights.filter_map(|(done, group, it)| Some(failed(done, group, &stopped(it)?))).collect()
    }
}
