//! How many things are there, and how old the oldest of them is: two additions for each thing.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{sharded_counters::ShardedCounters, since_begin};

/// Spans of time told apart.
const SLOTS: usize = 64;
/// The shortest span; ages are known to about this, or to an eighth of the oldest.
const GRAIN: Duration = Duration::from_millis(10);

/// Counts things by the span of time they came in.
///
/// Whoever comes begins another span when the last one has been long enough. When all are in use,
/// the newest goes on: the oldest thing is known all the same.
#[derive(Debug)]
pub struct AgeTracker {
    /// Things by span.
    counts: ShardedCounters,
    /// Nanoseconds.
    begins: [AtomicU64; SLOTS],
    current: AtomicUsize,
    turning: Mutex<()>,
}

/// Where a thing was counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgeToken(usize);

impl Default for AgeTracker {
    fn default() -> AgeTracker {
        AgeTracker {
            counts: ShardedCounters::new(SLOTS),
            begins: std::array::from_fn(|_| AtomicU64::new(0)),
            current: AtomicUsize::new(0),
            turning: Mutex::new(()),
        }
    }
}

impl AgeTracker {
    /// A thing comes; `leave` is to be told of it once.
    pub fn enter(&self, now: Instant) -> AgeToken {
        let now = nanoseconds(now);
        let current = self.current.load(Relaxed);
        if GRAIN.as_nanos() as u64 <= now.saturating_sub(self.begins[current].load(Relaxed)) {
            self.turn(now);
        }
        let current = self.current.load(Relaxed);
        self.counts.this_thread().add(current, 1);
        AgeToken(current)
    }

    /// It has gone.
    pub fn leave(&self, came: AgeToken) {
        self.counts.this_thread().subtract(came.0, 1);
    }

    /// How many are there.
    pub fn count(&self) -> u64 {
        self.counts.totals().into_iter().map(there).sum()
    }

    /// How old the oldest is, or a little less than what is told; nothing is zero old.
    pub fn oldest(&self, now: Instant) -> Duration {
        let begin = self.oldest_begin(&self.counts.totals());
        Duration::from_nanos(begin.map_or(0, |it| nanoseconds(now).saturating_sub(it)))
    }

    fn oldest_begin(&self, counts: &[u64]) -> Option<u64> {
        let used = self.begins.iter().zip(counts).filter(|(_, count)| there(**count) != 0);
        used.map(|(begin, _)| begin.load(Relaxed)).min()
    }

    fn turn(&self, now: u64) {
        // Somebody else does it: one more in the old span is no harm.
        let Some(_turning) = self.turning.try_lock() else { return };
        let counts = self.counts.totals();
        let current = self.current.load(Relaxed);
        let oldest = self.oldest_begin(&counts).map_or(0, |it| now.saturating_sub(it));
        let age = now.saturating_sub(self.begins[current].load(Relaxed));
        let is_free = |it: &usize| there(counts[*it]) == 0;
        if !is_free(&current) && age < oldest / 8 {
            return;
        }
        let Some(free) = (current..SLOTS).chain(0..current).find(is_free) else { return };
        self.begins[free].store(now, Relaxed);
        self.current.store(free, Relaxed);
    }
}

/// Threads are looked at one after the other: who goes may be seen before he came.
fn there(count: u64) -> u64 {
    (count as i64).max(0) as u64
}

/// Never zero, which is where unused spans begin.
fn nanoseconds(moment: Instant) -> u64 {
    since_begin(moment).as_nanos() as u64 + GRAIN.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_known() {
        let (ages, begin) = (AgeTracker::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!((ages.count(), ages.oldest(at(5))), (0, Duration::ZERO));
        let first = ages.enter(at(100));
        assert_eq!(ages.oldest(at(100)), Duration::ZERO);
        let second = ages.enter(at(105));
        let third = ages.enter(at(150));
        assert_eq!((ages.count(), ages.oldest(at(200))), (3, Duration::from_millis(100)));
        ages.leave(first);
        assert_eq!(ages.oldest(at(200)), Duration::from_millis(100), "a span is 10 ms");
        ages.leave(second);
        assert_eq!(ages.oldest(at(250)), Duration::from_millis(100));
        ages.leave(third);
        assert_eq!((ages.count(), ages.oldest(at(900))), (0, Duration::ZERO));
    }

    #[test]
    fn ages_stay_about_right_however_many_there_are() {
        let (ages, begin) = (AgeTracker::default(), Instant::now());
        let mut there = std::collections::VecDeque::new();
        // One every millisecond, each of which stays for a second.
        for ms in 0..10_000 {
            let now = begin + Duration::from_millis(ms);
            there.push_back(ages.enter(now));
            if 1000 < there.len() {
                ages.leave(there.pop_front().unwrap());
                let oldest = ages.oldest(now).as_millis();
                assert!((999..=1140).contains(&oldest), "{oldest} ms after {ms} ms");
            }
        }
        assert_eq!(ages.count(), 1000);
    }
}
