//! Statistics of the last minute: rates, quantiles of durations, and the last error.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;

use super::{
    durations::{BUCKETS, DurationDistribution, bucket},
    sliding_window::{RATE_SLOTS, SLOTS, WindowCounters},
};
use crate::{error::Error, text::shortened};

/// Counts the requests of the last minute, for each thread by itself.
#[derive(Debug)]
pub struct RecentStatistics {
    /// By the places below; before them, by how long they took, the requests that did not fail.
    window: WindowCounters,
    /// From old to new.
    failures: Mutex<VecDeque<RecentFailure>>,
}

/// So many failures are remembered.
const MAX_FAILURES: usize = 5;

/// Letters of a remembered text: the names in it may be a client's, of any length.
const MAX_FAILURE_LETTERS: usize = 4000;

/// Answered requests, those that failed among them.
const REQUESTS: usize = BUCKETS;
const ERRORS: usize = BUCKETS + 1;
/// Nanoseconds that instances were busy.
const BUSY_NS: usize = BUCKETS + 2;

impl Default for RecentStatistics {
    fn default() -> RecentStatistics {
        let window = WindowCounters::new(BUCKETS + 3);
        RecentStatistics { window, failures: Mutex::default() }
    }
}

/// A failure that was not a cancellation.
#[derive(Clone, Debug)]
pub struct RecentFailure {
    /// What the client was told, cut if it is very long.
    pub text: Arc<str>,
    /// When, on the monotonic clock.
    pub at: Instant,
    /// When, on the wall clock.
    pub time: SystemTime,
    /// It is one of those that are counted: the model had the request.
    pub is_counted: bool,
    /// So often in a row.
    pub times: u64,
}

/// The last minute, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MinuteSummary {
    /// Half of the good answers took no longer than this.
    pub p50: Option<Duration>,
    /// 99 of 100 good answers took no longer than this.
    pub p99: Option<Duration>,
    /// Answered requests, failures included.
    pub requests: u64,
    /// Failed requests, without cancelled ones.
    pub errors: u64,
    /// Answers per second, over the last ten to fifteen seconds.
    pub per_second: f64,
    /// Busy instances, on average over the same time.
    pub busy: f64,
}

/// One slot of the sliding window, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are those of `MinuteSummary`")]
pub struct HistoryPoint {
    pub requests: u64,
    pub errors: u64,
    pub p99: Option<Duration>,
}

impl RecentStatistics {
    /// Counts a request that was answered, or failed, after `elapsed`.
    #[inline]
    pub fn ended(&self, error: Option<&Error>, elapsed: Duration, now: Instant) {
        let work = self.window.at(now);
        match error {
            None => work.add(bucket(elapsed), 1),
            Some(error) if error.kind().is_abandoned() => return,
            Some(error) => {
                work.add(ERRORS, 1);
                self.remember(error, now, true);
            }
        }
        work.add(REQUESTS, 1);
    }

    /// Remembers a request that could not even be handed to the model; it is not counted.
    pub fn refused(&self, error: &Error, now: Instant) {
        if !error.kind().is_abandoned() {
            self.remember(error, now, false);
        }
    }

    fn remember(&self, error: &Error, now: Instant, is_counted: bool) {
        let text = shortened(&error.to_string(), MAX_FAILURE_LETTERS).into();
        let mut it = RecentFailure { text, at: now, time: SystemTime::now(), is_counted, times: 1 };
        let mut failures = self.failures.lock();
        // Clients that are wrong repeat themselves, and must not hide what else fails.
        let is_same = |last: &&RecentFailure| last.is_counted == is_counted && last.text == it.text;
        if let Some(last) = failures.back().filter(is_same) {
            it.times += last.times;
            failures.pop_back();
        } else if failures.len() == MAX_FAILURES {
            failures.pop_front();
        }
        failures.push_back(it);
    }

    /// Adds time in which an instance was busy.
    #[inline]
    pub fn busy_for(&self, time: Duration, now: Instant) {
        self.window.at(now).add(BUSY_NS, time.as_nanos() as u64);
    }

    /// The last failure that was counted.
    pub fn last_error(&self) -> Option<RecentFailure> {
        self.failures.lock().iter().rev().find(|it| it.is_counted).cloned()
    }

    /// The last failures, from old to new, equal ones in a row as one; also of requests that the
    /// model never had.
    pub fn failures(&self) -> Vec<RecentFailure> {
        self.failures.lock().iter().cloned().collect()
    }

    /// The minute before `now`.
    pub fn minute(&self, now: Instant) -> MinuteSummary {
        let all = self.window.last(SLOTS, now);
        let latest = self.window.last(RATE_SLOTS, now);
        let durations = DurationDistribution(&all[..BUCKETS]);
        let seconds = self.window.seconds(RATE_SLOTS, now);
        MinuteSummary {
            p50: durations.quantile(0.5),
            p99: durations.quantile(0.99),
            requests: all[REQUESTS],
            errors: all[ERRORS],
            per_second: latest[REQUESTS] as f64 / seconds,
            busy: latest[BUSY_NS] as f64 / 1e9 / seconds,
        }
    }

    /// The same slot by slot, from old to new.
    pub fn history(&self, now: Instant) -> [HistoryPoint; SLOTS] {
        self.window.by_slot(now).map(|counts| {
            let Some(counts) = counts else { return HistoryPoint::default() };
            let p99 = DurationDistribution(&counts[..BUCKETS]).quantile(0.99);
            HistoryPoint { requests: counts[REQUESTS], errors: counts[ERRORS], p99 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_failures_are_remembered_and_equal_ones_in_a_row_are_one() {
        let recent = RecentStatistics::default();
        let now = Instant::now();
        let fail = |text: &str| recent.ended(Some(&Error::internal(text)), Duration::ZERO, now);
        fail("first");
        recent.ended(Some(&Error::cancelled()), Duration::ZERO, now);
        ["second", "second", "third", "second"].into_iter().for_each(fail);
        recent.refused(&Error::invalid("second"), now);
        recent.refused(&Error::cancelled(), now);
        let told = |it: &RecentFailure| (it.text.to_string(), it.times, it.is_counted);
        let all: Vec<_> = recent.failures().iter().map(told).collect();
        let expected = [
            ("first", 1, true),
            ("second", 2, true),
            ("third", 1, true),
            ("second", 1, true),
            ("second", 1, false),
        ];
        assert_eq!(all, expected.map(|(text, times, counted)| (text.to_owned(), times, counted)));
        // What was refused is not counted, and is not the last failure of the model.
        assert!(recent.last_error().unwrap().is_counted);
        assert_eq!(recent.minute(now).errors, 5);
        fail("sixth");
        assert_eq!(recent.failures().len(), MAX_FAILURES);
        assert_eq!(&*recent.failures()[0].text, "second");
        // Names in it may be a client's, of any length.
        recent.refused(&Error::invalid("x".repeat(1 << 20)), now);
        assert_eq!(recent.failures()[4].text.chars().count(), MAX_FAILURE_LETTERS + 1);
    }
}
