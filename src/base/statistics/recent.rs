//! What happened to requests in the last minute, and how the last of them failed.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;

use super::{
    durations::{DurationDistribution, Durations},
    sliding_window::{Clear, RATE_SLOTS, SLOTS, SlidingWindow},
};
use crate::error::Error;

/// Requests of the last minute. Counting one costs some tens of nanoseconds.
#[derive(Debug, Default)]
pub struct RecentStatistics {
    ring: SlidingWindow<SlotCounters>,
    last_error: Mutex<Option<LastError>>,
}

/// What is counted in a span of time.
#[derive(Debug, Default)]
struct SlotCounters {
    durations: Durations,
    requests: AtomicU64,
    errors: AtomicU64,
    /// Nanoseconds that instances worked.
    busy: AtomicU64,
}

impl Clear for SlotCounters {
    fn clear(&self) {
        self.durations.clear();
        [&self.requests, &self.errors, &self.busy].into_iter().for_each(Clear::clear);
    }
}

/// The last failure that was no cancellation.
#[derive(Clone, Debug)]
pub struct LastError {
    /// Why.
    pub error: Error,
    /// When, by the clock of durations.
    pub at: Instant,
    /// When, by the wall clock.
    pub time: SystemTime,
}

/// The last minute in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MinuteSummary {
    /// Half of the good answers took no longer than this.
    pub p50: Option<Duration>,
    /// 99 of 100 good answers took no longer than this.
    pub p99: Option<Duration>,
    /// Answers, good or not.
    pub requests: u64,
    /// Failures; cancelled requests are none.
    pub errors: u64,
    /// Answers per second, of the last ten seconds or a little more.
    pub per_second: f64,
    /// Instances that were at work, on average over the same time.
    pub busy: f64,
}

/// One span of time in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are those of `MinuteSummary`")]
pub struct HistoryPoint {
    pub requests: u64,
    pub errors: u64,
    pub p99: Option<Duration>,
}

impl RecentStatistics {
    /// A request was answered, or failed, after `elapsed`.
    pub fn ended(&self, error: Option<&Error>, elapsed: Duration, now: Instant) {
        let work = self.ring.at(now);
        match error {
            None => work.durations.add(elapsed),
            Some(error) if error.kind().is_abandoned() => return,
            Some(error) => {
                work.errors.fetch_add(1, Relaxed);
                let last = LastError { error: error.clone(), at: now, time: SystemTime::now() };
                *self.last_error.lock() = Some(last);
            }
        }
        work.requests.fetch_add(1, Relaxed);
    }

    /// An instance has worked for so long.
    pub fn worked(&self, time: Duration, now: Instant) {
        self.ring.at(now).busy.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// How the last request failed.
    pub fn last_error(&self) -> Option<LastError> {
        self.last_error.lock().clone()
    }

    /// The last minute as it is at `now`.
    pub fn minute(&self, now: Instant) -> MinuteSummary {
        let sum = |spans, of: fn(&SlotCounters) -> &AtomicU64| -> u64 {
            self.ring.last(spans, now).flatten().map(|it| of(it).load(Relaxed)).sum()
        };
        let spread =
            DurationDistribution::of(self.ring.last(SLOTS, now).flatten().map(|it| &it.durations));
        let seconds = self.ring.seconds(RATE_SLOTS, now);
        MinuteSummary {
            p50: spread.quantile(0.5),
            p99: spread.quantile(0.99),
            requests: sum(SLOTS, |it| &it.requests),
            errors: sum(SLOTS, |it| &it.errors),
            per_second: sum(RATE_SLOTS, |it| &it.requests) as f64 / seconds,
            busy: sum(RATE_SLOTS, |it| &it.busy) as f64 / 1e9 / seconds,
        }
    }

    /// The same span by span, from old to new.
    pub fn history(&self, now: Instant) -> [HistoryPoint; SLOTS] {
        let mut points = [HistoryPoint::default(); SLOTS];
        for (point, work) in points.iter_mut().zip(self.ring.last(SLOTS, now)) {
            let Some(work) = work else { continue };
            let p99 = DurationDistribution::of([&work.durations].into_iter()).quantile(0.99);
            let [requests, errors] = [&work.requests, &work.errors].map(|it| it.load(Relaxed));
            *point = HistoryPoint { requests, errors, p99 };
        }
        points
    }
}
