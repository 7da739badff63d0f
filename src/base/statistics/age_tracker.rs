//! Counts live items and the age of the oldest of them, with two additions an item.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    clock::since_begin,
    sharded_counters::{ShardedCounters, live},
};

/// Generations of items that are told apart.
const GENERATIONS: usize = 64;
/// The shortest generation; ages are exact to this, or to an eighth of the oldest age.
const MIN_GENERATION: Duration = Duration::from_millis(10);

/// Counts items by the generation they entered in.
///
/// An item that enters begins a new generation when the current one is long enough. When all
/// generations are in use, the newest goes on: the age of the oldest item is still right.
#[derive(Debug)]
pub struct AgeTracker {
    /// Live items by generation.
    counts: ShardedCounters,
    /// When each generation began, in nanoseconds of `nanoseconds`.
    begins: [AtomicU64; GENERATIONS],
    current: AtomicUsize,
    turning: Mutex<()>,
}

/// The generation that an item was counted in, to be given back to `leave`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgeToken(usize);

impl Default for AgeTracker {
    fn default() -> AgeTracker {
        AgeTracker {
            counts: ShardedCounters::new(GENERATIONS),
            begins: std::array::from_fn(|_| AtomicU64::new(0)),
            current: AtomicUsize::new(0),
            turning: Mutex::new(()),
        }
    }
}

impl AgeTracker {
    /// Counts an item that enters; its token must be given to `leave` once.
    #[inline]
    pub fn enter(&self, now: Instant) -> AgeToken {
        let now = nanoseconds(now);
        let current = self.current.load(Relaxed);
        if MIN_GENERATION.as_nanos() as u64
            <= now.saturating_sub(self.begins[current].load(Relaxed))
        {
            self.turn(now);
        }
        let current = self.current.load(Relaxed);
        self.counts.this_thread().add(current, 1);
        AgeToken(current)
    }

    /// Counts an item that leaves.
    #[inline]
    pub fn leave(&self, token: AgeToken) {
        self.counts.this_thread().subtract(token.0, 1);
    }

    /// How many items are live.
    pub fn count(&self) -> u64 {
        self.counts.totals().into_iter().map(live).sum()
    }

    /// The age of the oldest item, never more than a generation too long; zero without items.
    pub fn oldest(&self, now: Instant) -> Duration {
        let begin = self.oldest_begin(&self.counts.totals());
        Duration::from_nanos(begin.map_or(0, |it| nanoseconds(now).saturating_sub(it)))
    }

    fn oldest_begin(&self, counts: &[u64]) -> Option<u64> {
        let used = self.begins.iter().zip(counts).filter(|(_, count)| live(**count) != 0);
        used.map(|(begin, _)| begin.load(Relaxed)).min()
    }

    fn turn(&self, now: u64) {
        // Another thread turns: one more item in the old generation does no harm.
        let Some(_turning) = self.turning.try_lock() else { return };
        let counts = self.counts.totals();
        let current = self.current.load(Relaxed);
        let oldest = self.oldest_begin(&counts).map_or(0, |it| now.saturating_sub(it));
        let age = now.saturating_sub(self.begins[current].load(Relaxed));
        let is_free = |it: &usize| live(counts[*it]) == 0;
        if !is_free(&current) && age < oldest / 8 {
            return;
        }
        let Some(free) = (current..GENERATIONS).chain(0..current).find(is_free) else { return };
        self.begins[free].store(now, Relaxed);
        self.current.store(free, Relaxed);
    }
}

/// Never zero, which is where unused generations begin.
fn nanoseconds(moment: Instant) -> u64 {
    since_begin(moment).as_nanos() as u64 + MIN_GENERATION.as_nanos() as u64
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
