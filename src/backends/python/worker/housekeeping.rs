//! Housekeeping of a worker: sweeps shared memory that nobody uses, answers callers that have gone,
//! ends a worker that was stopped, warns of one that does not come back.

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
    limits::EXECUTE_TIMEOUT,
    process::stopped::{StoppedLooks, WAS_STOPPED},
    protocol::encode,
};
use troupe_base::error::Error;

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// An execution that takes longer is told of, where none is ended for it.
const SLOW_EXECUTION: Duration = Duration::from_secs(30);

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

/// What is seen of one execution.
#[derive(Clone, Copy)]
struct SlowLook {
    is_slow: bool,
    /// Its model may answer as long as a client listens.
    is_stream: bool,
    is_gone: bool,
    /// No other execution of the worker was told of.
    is_first: bool,
    is_told: bool,
}

impl SlowLook {
    /// A model may be slow by nature: that is told once. Executions that nobody waits for are told
    /// of, each of them.
    fn is_worth_telling(self) -> bool {
        let SlowLook { is_slow, is_stream, is_gone, is_first, is_told } = self;
        is_slow && !is_told && (is_gone || is_first && !is_stream)
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
        self.warn_of_slow(Instant::now());
        self.answer_cancelled()
    }

    /// A worker that is in `execute` for ever takes nothing else, also when its client has gone.
    fn warn_of_slow(&mut self, now: Instant) {
        let WorkerState::Up(connection) = &mut self.state else { return };
        if self.in_flight.is_empty() || self.setup.time_limit.is_some() {
            return;
        }
        let begun = connection.progress.begun();
        let open = self.in_flight.iter_mut().flat_map(|it| it.open());
        for (_, number, group) in open.filter(|(_, number, _)| *number < begun) {
            let took = now.saturating_duration_since(*group.seen.get_or_insert(now));
            let look = SlowLook {
                is_slow: SLOW_EXECUTION <= took,
                is_stream: self.setup.config.decoupled,
                is_gone: group.requests.iter().flatten().all(|it| it.context.is_stopped()),
                is_first: connection.told_slow.is_none(),
                is_told: connection.told_slow.is_some_and(|told| number <= told),
            };
            if look.is_worth_telling() {
                connection.told_slow = Some(number);
                let (instance, model) = (&self.setup.spec.instance, &self.setup.config.name);
                let gone = if look.is_gone { ", and its client has gone" } else { "" };
                tracing::warn!(
                    target: "troupe::python", %model,
                    "instance '{instance}' has been in execute for {} s{gone}: the parameter \
                     {EXECUTE_TIMEOUT} ends such calls",
                    took.as_secs(),
                );
            }
        }
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

#[cfg(test)]
mod tests {
    use super::SlowLook;

    #[test]
    fn a_slow_execution_is_told_of_once_and_each_that_nobody_waits_for() {
        for (flags, expected) in [
            ("", false),
            ("gone first", false),
            ("slow first", true),
            ("slow", false),
            ("slow gone", true),
            ("slow gone told", false),
            ("slow stream first", false),
            ("slow stream gone", true),
        ] {
            let is = |flag| flags.split(' ').any(|it| it == flag);
            let look = SlowLook {
                is_slow: is("slow"),
                is_stream: is("stream"),
                is_gone: is("gone"),
                is_first: is("first"),
                is_told: is("told"),
            };
            assert_eq!(look.is_worth_telling(), expected, "{flags}");
        }
    }
}
