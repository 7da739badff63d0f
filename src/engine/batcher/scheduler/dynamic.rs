//! The dynamic batcher's scheduler: fills batches, but keeps nobody waiting longer than configured.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    decision::{Decision, Rejected, Scheduler},
    queue::{PlainQueue, RequestQueue},
};
use crate::instance::FreeSlots;
use troupe_base::{
    config::DynamicBatching,
    request::{CallChain, Pending},
    tensor::Tensor,
};

/// Fills batches up to `max_rows`, but keeps nobody waiting longer than the configured delay.
pub(super) struct Dynamic<Q = PlainQueue> {
    queue: Q,
    max_rows: u32,
    preferred: Vec<u32>,
    max_delay: Duration,
    /// Which inputs may have other shapes in each request.
    ragged: Vec<bool>,
}

impl<Q> Dynamic<Q> {
    pub(super) fn new(
        config: &DynamicBatching,
        queue: Q,
        max_rows: u32,
        ragged: Vec<bool>,
    ) -> Dynamic<Q> {
        let preferred =
            if config.preferred.is_empty() { vec![max_rows] } else { config.preferred.clone() };
        let max_delay = config.max_queue_delay;
        Dynamic { queue, max_rows, preferred, max_delay, ragged }
    }
}

/// The head of a queue that can run as one batch.
struct Head {
    /// All that fits, and the rows in it.
    all: usize,
    rows: u32,
    /// Since when the first of them waits: not the next one where priorities order them.
    oldest: Instant,
    /// The longest part whose rows are a preferred size, 0 if there is none.
    preferred: usize,
    /// Something waits that does not fit.
    is_closed: bool,
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
        let Some(head) = self.head() else { return Decision::Idle };
        let due = head.oldest + self.max_delay;
        let is_overdue = !self.max_delay.is_zero() && due <= now;
        let largest = self.preferred.iter().copied().max().unwrap_or(self.max_rows);
        let count = if head.preferred != 0 && !is_overdue {
            head.preferred
        } else if head.is_closed || largest <= head.rows || self.max_delay.is_zero() || is_overdue {
            head.all
        } else {
            return Decision::Delay { until: due, reason: "the batch is not full" };
        };
        Decision::Run { batch: self.queue.take(count), slot: None }
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
        !self.max_delay.is_zero() || self.queue.is_timed()
    }

    fn callers(&self) -> Vec<(Arc<CallChain>, Instant)> {
        self.queue.callers()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

impl<Q: RequestQueue> Dynamic<Q> {
    /// `None` if nothing waits.
    fn head(&self) -> Option<Head> {
        let first = self.queue.iter().next()?;
        let oldest = first.reply.since();
        let mut head = Head { all: 0, rows: 0, oldest, preferred: 0, is_closed: false };
        for pending in self.queue.iter() {
            let rows = head.rows.saturating_add(pending.request.rows());
            let fits = head.all == 0 || (rows <= self.max_rows && self.join(first, pending));
            if !fits {
                head.is_closed = true;
                break;
            }
            head.all += 1;
            head.rows = rows;
            head.oldest = head.oldest.min(pending.reply.since());
            if self.preferred.contains(&rows) {
                head.preferred = head.all;
            }
        }
        head.is_closed |= head.rows == self.max_rows;
        Some(head)
    }

    /// The same inputs are there in both requests, with the same dimensions but for the batch;
    /// ragged ones need only be there.
    fn join(&self, first: &Pending, other: &Pending) -> bool {
        let same = |((a, b), ragged): ((&Option<Tensor>, &Option<Tensor>), &bool)| match (a, b) {
            (Some(a), Some(b)) => *ragged || a.shape().iter().skip(1).eq(b.shape().iter().skip(1)),
            (None, None) => true,
            _ => false,
        };
        first.request.inputs.iter().zip(&other.request.inputs).zip(&self.ragged).all(same)
    }
}

#[cfg(test)]
mod tests {
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
