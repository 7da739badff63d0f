//! How many things are there, and how old the oldest of them is: two additions for each thing.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::since_begin;

/// Spans of time told apart.
const SPANS: usize = 64;
/// The shortest span; ages are known to about this, or to an eighth of the oldest.
const GRAIN: Duration = Duration::from_millis(10);

/// Counts things by the span of time they came in.
///
/// Whoever comes begins another span when the last one has been long enough. When all are in use,
/// the newest goes on: the oldest thing is known all the same.
#[derive(Debug)]
pub struct Ages {
    spans: [Span; SPANS],
    current: AtomicUsize,
    turning: Mutex<()>,
}

#[derive(Debug, Default)]
struct Span {
    count: AtomicU64,
    /// Nanoseconds.
    begin: AtomicU64,
}

/// Where a thing was counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Came(usize);

impl Default for Ages {
    fn default() -> Ages {
        let spans = std::array::from_fn(|_| Span::default());
        Ages { spans, current: AtomicUsize::new(0), turning: Mutex::new(()) }
    }
}

impl Ages {
    /// A thing comes; `leave` is to be told of it once.
    pub fn enter(&self, now: Instant) -> Came {
        let now = nanoseconds(now);
        let current = self.current.load(Relaxed);
        if GRAIN.as_nanos() as u64 <= now.saturating_sub(self.spans[current].begin.load(Relaxed)) {
            self.turn(now);
        }
        let current = self.current.load(Relaxed);
        self.spans[current].count.fetch_add(1, Relaxed);
        Came(current)
    }

    /// It has gone.
    pub fn leave(&self, came: Came) {
        self.spans[came.0].count.fetch_sub(1, Relaxed);
    }

    /// How many are there.
    pub fn count(&self) -> u64 {
        self.spans.iter().map(|it| it.count.load(Relaxed)).sum()
    }

    /// How old the oldest is, or a little less than what is told; nothing is zero old.
    pub fn oldest(&self, now: Instant) -> Duration {
        let now = nanoseconds(now);
        let begin = self.oldest_begin();
        Duration::from_nanos(begin.map_or(0, |it| now.saturating_sub(it)))
    }

    fn oldest_begin(&self) -> Option<u64> {
        let used = self.spans.iter().filter(|it| it.count.load(Relaxed) != 0);
        used.map(|it| it.begin.load(Relaxed)).min()
    }

    fn turn(&self, now: u64) {
        // Somebody else does it: one more in the old span is no harm.
        let Some(_turning) = self.turning.try_lock() else { return };
        let current = self.current.load(Relaxed);
        let oldest = self.oldest_begin().map_or(0, |it| now.saturating_sub(it));
        let age = now.saturating_sub(self.spans[current].begin.load(Relaxed));
        let is_free = |it: &Span| it.count.load(Relaxed) == 0;
        if !is_free(&self.spans[current]) && age < oldest / 8 {
            return;
        }
        let places = (current..SPANS).chain(0..current);
        let Some(free) = places.into_iter().find(|it| is_free(&self.spans[*it])) else { return };
        self.spans[free].begin.store(now, Relaxed);
        self.current.store(free, Relaxed);
    }
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
        let (ages, begin) = (Ages::default(), Instant::now());
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
        let (ages, begin) = (Ages::default(), Instant::now());
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
