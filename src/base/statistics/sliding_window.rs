//! The last minute in spans of time: each is forgotten when its place is needed again.

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// How long a span is.
pub const SLOT_DURATION: Duration = Duration::from_secs(5);
/// Spans in a minute.
pub const SLOTS: usize = 12;
/// Spans that rates are taken over: short enough to see a change, long enough to be steady.
pub const RATE_SLOTS: usize = 3;

/// What is counted in a span.
pub trait Clear: Default {
    /// Back to nothing.
    fn clear(&self);
}

impl Clear for AtomicU64 {
    fn clear(&self) {
        self.store(0, Relaxed);
    }
}

/// Counters of the last minute. Counting takes no lock but for the first count of a span.
#[derive(Debug)]
pub struct SlidingWindow<T> {
    begin: Instant,
    spans: Box<[Slot<T>]>,
    turning: Mutex<()>,
}

#[derive(Debug, Default)]
struct Slot<T> {
    /// Which span since the beginning, from 1 on; 0: none yet.
    number: AtomicU64,
    counted: T,
}

impl<T: Clear> Default for SlidingWindow<T> {
    fn default() -> SlidingWindow<T> {
        let spans = (0..SLOTS).map(|_| Slot::default()).collect();
        SlidingWindow { begin: Instant::now(), spans, turning: Mutex::new(()) }
    }
}

impl<T: Clear> SlidingWindow<T> {
    /// The counters of the span that `now` lies in.
    pub fn at(&self, now: Instant) -> &T {
        let number = self.number(now);
        let span = &self.spans[number as usize % SLOTS];
        if span.number.load(Acquire) < number {
            self.turn(span, number);
        }
        &span.counted
    }

    /// The last spans, the current one included, from old to new; `None` where nothing was counted.
    pub fn last(&self, spans: usize, now: Instant) -> impl Iterator<Item = Option<&T>> {
        let current = self.number(now);
        let numbers = (0..spans.min(SLOTS) as u64).rev();
        numbers.map(move |back| {
            let number = current.checked_sub(back)?;
            let span = &self.spans[number as usize % SLOTS];
            let is_it = number != 0 && span.number.load(Acquire) == number;
            is_it.then_some(&span.counted)
        })
    }

    /// The seconds that so many spans cover at `now`: the current one has not ended, and the first
    /// may have begun before the ring did. At least one, or rates would jump at the start.
    pub fn seconds(&self, spans: usize, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.begin).as_secs_f64();
        let whole = SLOT_DURATION.as_secs_f64();
        let earlier = spans.clamp(1, SLOTS) - 1;
        (age % whole + whole * earlier as f64).min(age).max(1.0)
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begin).as_secs() / SLOT_DURATION.as_secs() + 1
    }

    #[cold]
    fn turn(&self, span: &Slot<T>, number: u64) {
        let _turning = self.turning.lock();
        if span.number.load(Relaxed) < number {
            span.counted.clear();
            span.number.store(number, Release);
        }
    }
}

/// A sum per second, over the last spans.
pub fn per_second(ring: &SlidingWindow<AtomicU64>, now: Instant) -> f64 {
    let sum: u64 = ring.last(RATE_SLOTS, now).flatten().map(|it| it.load(Relaxed)).sum();
    sum as f64 / ring.seconds(RATE_SLOTS, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ring: &SlidingWindow<AtomicU64>, now: Instant) -> Vec<Option<u64>> {
        ring.last(SLOTS, now).map(|it| it.map(|it| it.load(Relaxed))).collect()
    }

    #[test]
    fn what_is_older_than_a_minute_is_forgotten() {
        let ring = SlidingWindow::<AtomicU64>::default();
        let at = |seconds| ring.begin + Duration::from_secs(seconds);
        ring.at(at(0)).fetch_add(1, Relaxed);
        ring.at(at(4)).fetch_add(1, Relaxed);
        ring.at(at(12)).fetch_add(5, Relaxed);
        assert_eq!(seen(&ring, at(12))[9..], [Some(2), None, Some(5)]);
        assert_eq!(seen(&ring, at(59))[..3], [Some(2), None, Some(5)]);
        assert_eq!(seen(&ring, at(60))[..2], [None, Some(5)]);
        ring.at(at(60)).fetch_add(7, Relaxed);
        assert_eq!(seen(&ring, at(60))[11], Some(7));
        assert_eq!(seen(&ring, at(3600)), [None; SLOTS]);
    }

    #[test]
    fn a_count_that_comes_late_joins_the_span_that_has_taken_its_place() {
        let ring = SlidingWindow::<AtomicU64>::default();
        let at = |seconds| ring.begin + Duration::from_secs(seconds);
        ring.at(at(60)).fetch_add(1, Relaxed);
        ring.at(at(0)).fetch_add(1, Relaxed);
        assert_eq!(seen(&ring, at(60))[11], Some(2));
    }

    #[test]
    fn rates_are_those_of_the_time_that_has_gone_by() {
        let ring = SlidingWindow::<AtomicU64>::default();
        let at = |millis| ring.begin + Duration::from_millis(millis);
        ring.at(at(0)).fetch_add(30, Relaxed);
        for (millis, expected) in [(100, 30.0), (2000, 15.0), (12_000, 2.5), (15_000, 0.0)] {
            assert_eq!(per_second(&ring, at(millis)), expected, "after {millis} ms");
        }
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let ring = SlidingWindow::<AtomicU64>::default();
        let now = ring.begin + Duration::from_secs(3600);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        ring.at(now).fetch_add(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(seen(&ring, now)[11], Some(4000));
    }
}
