//! Housekeeping of a worker: sweeps shared memory that nobody uses, answers callers that have gone.

use std::{cell::RefCell, rc::Weak, time::Duration};

use super::{
    in_flight::{GroupEvents, InFlightGroup, deliver, failed},
    link::{WorkerLink, WorkerState},
};
use crate::python::protocol::encode;
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
        self.answer_cancelled()
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
