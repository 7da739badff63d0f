//! The dynamic batcher's scheduler: fills batches, but keeps nobody waiting longer than configured.

use std::{sync::Arc, time::Instant};

use super::{
    batch_rule::{BatchChoice, BatchRule},
    decision::{Decision, Rejected, Scheduler},
    queue::{PlainQueue, RequestQueue},
};
use crate::instance::FreeSlots;
use troupe_base::{
    config::DynamicBatching,
    request::{CallChain, Pending},
};

/// Fills batches up to `max_rows`, but keeps nobody waiting longer than the configured delay.
pub(super) struct Dynamic<Q = PlainQueue> {
    queue: Q,
    rule: BatchRule,
}

impl<Q> Dynamic<Q> {
    pub(super) fn new(
        config: &DynamicBatching,
        queue: Q,
        max_rows: u32,
        ragged: Vec<bool>,
    ) -> Dynamic<Q> {
        let rule = BatchRule::new(&config.preferred, config.max_queue_delay, max_rows, ragged);
        Dynamic { queue, rule }
    }
}

impl<Q: RequestQueue> Scheduler for Dynamic<Q> {
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
        let waiting = self.queue.iter().map(|it| (it, it.reply.since()));
        match self.rule.choose(waiting, now) {
            BatchChoice::Nothing => Decision::Idle,
            BatchChoice::Delay { until } => {
                Decision::Delay { until, reason: "the batch is not full" }
            }
            BatchChoice::Take(count) => Decision::run(self.queue.take(count)),
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
        self.rule.delays() || self.queue.is_timed()
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
    use std::time::Duration;

    use super::{super::testing::waiting, *};
    use troupe_base::config::PriorityLevels;

    /// Arrivals are `(ms, rows, width)`; expected batches are `(ms, rows of each request)`.
    /// An instance is always idle.
    fn check(preferred: &[u32], arrivals: &[(u64, u32, i64)], expected: &[(u64, &[u32])]) {
        check_with(false, preferred, arrivals, expected);
    }

    fn check_with(
        ragged: bool,
        preferred: &[u32],
        arrivals: &[(u64, u32, i64)],
        expected: &[(u64, &[u32])],
    ) {
        let config = DynamicBatching {
            preferred: preferred.to_vec(),
            max_queue_delay: Duration::from_millis(10),
            preserve_ordering: false,
            queues: PriorityLevels::default(),
        };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut scheduler = Dynamic::new(&config, PlainQueue::default(), 8, vec![ragged]);
        let mut batches = Vec::new();
        for ms in 0..100 {
            for &(_, rows, width) in arrivals.iter().filter(|it| it.0 == ms) {
                assert!(scheduler.push(waiting(rows, width, at(ms)), at(ms)).is_ok());
            }
            while let Decision::Run { batch, .. } = scheduler.next(at(ms), &FreeSlots::only(0)) {
                batches.push((ms, batch.iter().map(|it| it.request.rows()).collect::<Vec<u32>>()));
            }
        }
        let expected: Vec<_> = expected.iter().map(|(ms, rows)| (*ms, rows.to_vec())).collect();
        assert_eq!(batches, expected);
    }

    #[test]
    fn waits_for_company_but_not_forever() {
        check(&[], &[(0, 1, 4), (3, 1, 4)], &[(10, &[1, 1])]);
    }

    #[test]
    fn a_full_batch_does_not_wait() {
        check(&[], &[(0, 4, 4), (3, 4, 4)], &[(3, &[4, 4])]);
    }

    #[test]
    fn a_request_that_does_not_fit_starts_the_next_batch() {
        check(&[], &[(0, 6, 4), (1, 3, 4)], &[(1, &[6]), (11, &[3])]);
    }

    #[test]
    fn a_preferred_size_runs_at_once_and_the_rest_waits() {
        check(&[4], &[(0, 2, 4), (2, 2, 4), (2, 1, 4)], &[(2, &[2, 2]), (12, &[1])]);
    }

    #[test]
    fn other_dimensions_do_not_join() {
        check(&[], &[(0, 1, 4), (1, 1, 5), (2, 1, 5)], &[(1, &[1]), (11, &[1, 1])]);
    }

    #[test]
    fn ragged_inputs_join_whatever_their_dimensions() {
        check_with(true, &[], &[(0, 1, 4), (1, 2, 5), (2, 1, 0)], &[(10, &[1, 2, 1])]);
        check_with(true, &[], &[(0, 7, 4), (1, 2, 5)], &[(1, &[7]), (11, &[2])]);
    }
}
