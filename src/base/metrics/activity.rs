//! Activity of one ensemble for the live page: requests at its steps, and bytes between them.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::{
    error::Error,
    statistics::{
        RecentStatistics, ShardedCounters,
        sliding_window::{RATE_SLOTS, WindowCounters},
    },
};

/// What an ensemble and its steps do right now, counted from its load to its end.
#[derive(Debug)]
pub struct EnsembleActivity {
    /// By position in the config.
    pub steps: Vec<StepActivity>,
    /// By slot, how many tensors and how many bytes were put there.
    tensors: WindowCounters,
    slots: HashMap<String, usize>,
}

/// Counters of one step.
#[derive(Debug)]
pub struct StepActivity {
    /// The last minute.
    pub recent: RecentStatistics,
    /// By the places below.
    requests: ShardedCounters,
    waiting: AtomicU64,
}

/// Read before those that have begun: what is in flight may be too high for a moment, seldom too low.
const ENDED: usize = 0;
const BEGUN: usize = 1;
const ERRORS: usize = 2;
const CANCELLED: usize = 3;

impl Default for StepActivity {
    fn default() -> StepActivity {
        StepActivity {
            recent: RecentStatistics::default(),
            requests: ShardedCounters::new(4),
            waiting: AtomicU64::new(0),
        }
    }
}

/// A step's counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCounts {
    /// Answered requests, failures included.
    pub requests: u64,
    /// Of these, failures, without cancellations.
    pub errors: u64,
    /// Of these, cancellations: the client has gone, or another step failed.
    pub cancelled: u64,
    /// Requests handed to the step's model and not answered.
    pub in_flight: u64,
    /// Requests held back while `max_inflight_requests` are in flight.
    pub waiting: u64,
}

/// One of the ensemble's tensors, over all requests.
#[derive(Clone, Copy, Debug)]
pub struct TensorActivity<'a> {
    all: &'a WindowCounters,
    slot: usize,
}

/// Places of a slot.
const COUNT: usize = 0;
const BYTES: usize = 1;
const PLACES: usize = 2;

impl EnsembleActivity {
    /// Counters for `steps` steps and for the tensors of these slots.
    pub fn new(steps: usize, slots: HashMap<String, usize>) -> EnsembleActivity {
        let steps = (0..steps).map(|_| StepActivity::default()).collect();
        let count = slots.values().map(|it| it + 1).max().unwrap_or(0);
        EnsembleActivity { steps, tensors: WindowCounters::new(count * PLACES), slots }
    }

    /// How many slots there are.
    pub fn tensors(&self) -> usize {
        self.slots.values().map(|it| it + 1).max().unwrap_or(0)
    }

    /// Counts a tensor of `bytes` that was put into a slot.
    #[inline]
    pub fn record_tensor(&self, slot: usize, bytes: usize, now: Instant) {
        let mine = self.tensors.at(now);
        mine.add(slot * PLACES + COUNT, 1);
        mine.add(slot * PLACES + BYTES, bytes as u64);
    }

    /// The counters of a tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<TensorActivity<'_>> {
        Some(TensorActivity { all: &self.tensors, slot: *self.slots.get(name)? })
    }
}

impl StepActivity {
    /// Counts a request handed to the step's model.
    #[inline]
    pub fn request_started(&self) {
        self.requests.this_thread().add(BEGUN, 1);
    }

    /// Counts its answer, or its failure, after `elapsed`.
    #[inline]
    pub fn request_ended(&self, error: Option<&Error>, elapsed: Duration, now: Instant) {
        let mine = self.requests.this_thread();
        mine.add(ENDED, 1);
        match error {
            None => (),
            Some(it) if it.kind().is_abandoned() => mine.add(CANCELLED, 1),
            Some(_) => mine.add(ERRORS, 1),
        }
        self.recent.ended(error, elapsed, now);
    }

    /// Sets how many requests wait for room in the step's window.
    pub fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting as u64, Relaxed);
    }

    /// The counts at this moment.
    pub fn counts(&self) -> StepCounts {
        let counts = self.requests.totals();
        StepCounts {
            requests: counts[ENDED],
            errors: counts[ERRORS],
            cancelled: counts[CANCELLED],
            in_flight: counts[BEGUN].saturating_sub(counts[ENDED]),
            waiting: self.waiting.load(Relaxed),
        }
    }
}

impl TensorActivity<'_> {
    /// How many tensors since the load, and their bytes.
    pub fn total(&self) -> (u64, u64) {
        let totals = self.all.totals();
        (totals[self.slot * PLACES + COUNT], totals[self.slot * PLACES + BYTES])
    }

    /// Bytes per second, over the last ten to fifteen seconds.
    pub fn per_second(&self, now: Instant) -> f64 {
        let bytes = self.all.last(RATE_SLOTS, now)[self.slot * PLACES + BYTES];
        bytes as f64 / self.all.seconds(RATE_SLOTS, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_knows_its_requests_and_its_last_error() {
        let step = StepActivity::default();
        let now = Instant::now();
        (0..5).for_each(|_| step.request_started());
        step.request_ended(None, Duration::from_millis(10), now);
        step.request_ended(Some(&Error::internal("first")), Duration::from_secs(1), now);
        step.request_ended(Some(&Error::internal("second")), Duration::from_secs(1), now);
        step.request_ended(Some(&Error::cancelled()), Duration::ZERO, now);
        step.set_waiting(7);
        let expected =
            StepCounts { requests: 4, errors: 2, cancelled: 1, in_flight: 1, waiting: 7 };
        assert_eq!(step.counts(), expected);
        let minute = step.recent.minute(now);
        assert_eq!((minute.requests, minute.errors), (3, 2));
        assert!(minute.p99.is_some_and(|it| it < Duration::from_millis(11)), "{minute:?}");
        assert_eq!(&*step.recent.last_error().unwrap().text, "second");
    }

    #[test]
    fn bytes_are_counted_where_a_tensor_lies() {
        let live = EnsembleActivity::new(1, [("a".to_owned(), 0), ("b".to_owned(), 1)].into());
        let now = Instant::now();
        live.record_tensor(1, 300, now);
        live.record_tensor(1, 200, now);
        let total = |name| live.tensor(name).map(|it| it.total());
        assert_eq!([total("a"), total("b"), total("c")], [Some((0, 0)), Some((2, 500)), None]);
        assert_eq!(live.tensor("b").unwrap().per_second(now), 500.0);
    }
}
