//! Activity of one ensemble for the live page: requests at its steps, and bytes between them.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::{
    error::Error,
    statistics::{
        RecentStatistics,
        sliding_window::{self, SlidingWindow},
    },
};

/// What an ensemble and its steps do right now, counted from its load to its end.
#[derive(Debug)]
pub struct EnsembleActivity {
    /// By position in the config.
    pub steps: Vec<StepActivity>,
    /// By slot.
    tensors: Vec<TensorActivity>,
    slots: HashMap<String, usize>,
}

/// Counters of one step.
#[derive(Debug, Default)]
pub struct StepActivity {
    /// The last minute.
    pub recent: RecentStatistics,
    begun: AtomicU64,
    ended: AtomicU64,
    errors: AtomicU64,
    cancelled: AtomicU64,
    waiting: AtomicU64,
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

/// Counters of one of the ensemble's tensors, over all requests.
#[derive(Debug, Default)]
pub struct TensorActivity {
    count: AtomicU64,
    bytes: AtomicU64,
    recent: SlidingWindow<AtomicU64>,
}

impl EnsembleActivity {
    /// Counters for `steps` steps and for the tensors of these slots.
    pub fn new(steps: usize, slots: HashMap<String, usize>) -> EnsembleActivity {
        let steps = (0..steps).map(|_| StepActivity::default()).collect();
        let count = slots.values().map(|it| it + 1).max().unwrap_or(0);
        EnsembleActivity {
            steps,
            tensors: (0..count).map(|_| TensorActivity::default()).collect(),
            slots,
        }
    }

    /// How many slots there are.
    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Counts a tensor of `bytes` that was put into a slot.
    #[inline]
    pub fn record_tensor(&self, slot: usize, bytes: usize, now: Instant) {
        self.tensors[slot].add(bytes as u64, now);
    }

    /// The counters of a tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&TensorActivity> {
        self.tensors.get(*self.slots.get(name)?)
    }
}

impl StepActivity {
    /// Counts a request handed to the step's model.
    #[inline]
    pub fn request_started(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    /// Counts its answer, or its failure, after `elapsed`.
    #[inline]
    pub fn request_ended(&self, error: Option<&Error>, elapsed: Duration, now: Instant) {
        self.ended.fetch_add(1, Relaxed);
        match error {
            None => (),
            Some(it) if it.kind().is_abandoned() => count(&self.cancelled),
            Some(_) => count(&self.errors),
        }
        self.recent.ended(error, elapsed, now);
    }

    /// Sets how many requests wait for room in the step's window.
    pub fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting as u64, Relaxed);
    }

    /// The counts at this moment.
    pub fn counts(&self) -> StepCounts {
        // Ended requests are read first: `in_flight` may be too high for a moment, never too low.
        let requests = self.ended.load(Relaxed);
        StepCounts {
            requests,
            errors: self.errors.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            in_flight: self.begun.load(Relaxed).saturating_sub(requests),
            waiting: self.waiting.load(Relaxed),
        }
    }
}

impl TensorActivity {
    fn add(&self, bytes: u64, now: Instant) {
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.recent.at(now).fetch_add(bytes, Relaxed);
    }

    /// How many tensors since the load, and their bytes.
    pub fn total(&self) -> (u64, u64) {
        (self.count.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// Bytes per second, over the last ten to fifteen seconds.
    pub fn per_second(&self, now: Instant) -> f64 {
        sliding_window::per_second(&self.recent, now)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
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
        let total = |name| live.tensor(name).map(TensorActivity::total);
        assert_eq!([total("a"), total("b"), total("c")], [Some((0, 0)), Some((2, 500)), None]);
        assert_eq!(live.tensor("b").unwrap().per_second(now), 500.0);
    }
}
