//! The direct scheduler: first come, first served, each request an execution of its own.

use std::{sync::Arc, time::Instant};

use super::{
    decision::{Decision, Rejected, Scheduler},
    queue::RequestQueue,
};
use crate::instance::FreeSlots;
use troupe_base::request::{CallChain, Pending};

#[derive(Default)]
pub(super) struct Direct {
    queue: RequestQueue,
}

impl Scheduler for Direct {
    fn push(&mut self, pending: Pending) -> Result<(), Box<Rejected>> {
        self.queue.push(pending)
    }

    fn put_back(&mut self, pending: Pending) {
        self.queue.put_back(pending);
    }

    fn next(&mut self, _: Instant, _: &FreeSlots<'_>) -> Decision {
        let stopped = self.queue.stopped_first();
        if !stopped.is_empty() {
            return Decision::Reject(stopped);
        }
        match self.queue.waiting.pop_front() {
            Some(pending) => Decision::Run { batch: vec![pending], slot: None },
            None => Decision::Idle,
        }
    }

    fn expire(&mut self, _: Instant) -> Vec<Rejected> {
        self.queue.stopped()
    }

    fn callers(&self) -> Vec<(Arc<CallChain>, Instant)> {
        self.queue.callers()
    }

    fn len(&self) -> usize {
        self.queue.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::waiting, *};

    #[test]
    fn cancelled_requests_are_found_behind_others() {
        let mut scheduler = Direct::default();
        let pending = waiting(1, 1, Instant::now());
        pending.request.context.cancel();
        assert!(scheduler.push(waiting(1, 1, Instant::now())).is_ok());
        assert!(scheduler.push(pending).is_ok());
        let mut next = || scheduler.next(Instant::now(), &FreeSlots::only(0));
        assert!(matches!(next(), Decision::Run { .. }));
        assert!(matches!(next(), Decision::Reject(stopped) if stopped.len() == 1));
        assert!(matches!(next(), Decision::Idle));
    }
}
