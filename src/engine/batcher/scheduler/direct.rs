//! The direct scheduler: first come, first served, each request an execution of its own.

use std::{sync::Arc, time::Instant};

use super::{
    decision::{Decision, Rejected, Scheduler},
    queue::{PlainQueue, RequestQueue},
};
use crate::instance::FreeSlots;
use troupe_base::request::{CallChain, Pending};

#[derive(Default)]
pub(super) struct Direct<Q = PlainQueue> {
    queue: Q,
}

impl<Q> Direct<Q> {
    pub(super) fn new(queue: Q) -> Direct<Q> {
        Direct { queue }
    }
}

impl<Q: RequestQueue> Scheduler for Direct<Q> {
    fn push(&mut self, pending: Pending, from: Instant) -> Result<(), Box<Rejected>> {
        self.queue.push(pending, from)
    }

    fn put_back(&mut self, pending: Pending) {
        self.queue.put_back(pending);
    }

    fn next(&mut self, now: Instant, _: &FreeSlots<'_>) -> Decision {
        let rejected = self.queue.rejected(now);
        if !rejected.is_empty() {
            return Decision::Reject(rejected);
        }
        let batch = self.queue.take(1);
        match batch.is_empty() {
            true => Decision::Idle,
            false => Decision::run(batch),
        }
    }

    fn stopped(&mut self) -> Vec<Rejected> {
        self.queue.stopped()
    }

    fn expire(&mut self, now: Instant) -> Vec<Rejected> {
        self.queue.expired(now)
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.next_due()
    }

    fn is_timed(&self) -> bool {
        self.queue.is_timed()
    }

    fn callers(&self) -> Vec<(Arc<CallChain>, Instant)> {
        self.queue.callers()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::waiting, *};

    #[test]
    fn cancelled_requests_are_found_behind_others() {
        let mut scheduler = <Direct>::default();
        let pending = waiting(1, 1, Instant::now());
        pending.request.context.cancel();
        let now = Instant::now();
        assert!(scheduler.push(waiting(1, 1, now), now).is_ok());
        assert!(scheduler.push(pending, now).is_ok());
        let mut next = || scheduler.next(Instant::now(), &FreeSlots::only(0));
        assert!(matches!(next(), Decision::Run { .. }));
        assert!(matches!(next(), Decision::Reject(stopped) if stopped.len() == 1));
        assert!(matches!(next(), Decision::Idle));
    }
}
