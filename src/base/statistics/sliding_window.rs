//! A sliding window over the last minute: a window of slots, each of which is cleared when it is
//! reused.

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The length of a slot.
pub const SLOT_DURATION: Duration = Duration::from_secs(5);
/// Slots in the window: a minute.
pub const SLOTS: usize = 12;
/// Slots that rates are taken over: few enough to show a change, enough to be steady.
pub const RATE_SLOTS: usize = 3;

/// Counters of a slot that can be reused.
pub trait Clear: Default {
    /// Sets everything to zero.
    fn clear(&self);
}

impl Clear for AtomicU64 {
    fn clear(&self) {
        self.store(0, Relaxed);
    }
}

/// Counters of the last minute. Only the first count of a slot takes a lock.
#[derive(Debug)]
pub struct SlidingWindow<T> {
    begin: Instant,
    slots: Box<[Slot<T>]>,
    rotation: Mutex<()>,
}

#[derive(Debug, Default)]
struct Slot<T> {
    /// The slot's number since the beginning, from 1 on; 0: never used.
    number: AtomicU64,
    counters: T,
}

impl<T: Clear> Default for SlidingWindow<T> {
    fn default() -> SlidingWindow<T> {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        SlidingWindow { begin: Instant::now(), slots, rotation: Mutex::new(()) }
    }
}

impl<T: Clear> SlidingWindow<T> {
    /// The counters of the slot that `now` lies in.
    pub fn at(&self, now: Instant) -> &T {
        let number = self.number(now);
        let slot = &self.slots[number as usize % SLOTS];
        if slot.number.load(Acquire) < number {
            self.rotate(slot, number);
        }
        &slot.counters
    }

    /// The last slots, the current one included, from old to new; `None` where nothing was counted.
    pub fn last(&self, slots: usize, now: Instant) -> impl Iterator<Item = Option<&T>> {
        let current = self.number(now);
        let numbers = (0..slots.min(SLOTS) as u64).rev();
        numbers.map(move |back| {
            let number = current.checked_sub(back)?;
            let slot = &self.slots[number as usize % SLOTS];
            let is_it = number != 0 && slot.number.load(Acquire) == number;
            is_it.then_some(&slot.counters)
        })
    }

    /// The seconds that the last slots cover at `now`: the current one has not ended, and the first
    /// may have begun before the window did. At least one, or rates would jump at the start.
    pub fn seconds(&self, slots: usize, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.begin).as_secs_f64();
        let whole = SLOT_DURATION.as_secs_f64();
        let earlier = slots.clamp(1, SLOTS) - 1;
        (age % whole + whole * earlier as f64).min(age).max(1.0)
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begin).as_secs() / SLOT_DURATION.as_secs() + 1
    }

    #[cold]
    fn rotate(&self, slot: &Slot<T>, number: u64) {
        let _guard = self.rotation.lock();
        if slot.number.load(Relaxed) < number {
            slot.counters.clear();
            slot.number.store(number, Release);
        }
    }
}

/// The rate per second, over the last `RATE_SLOTS` slots.
pub fn per_second(window: &SlidingWindow<AtomicU64>, now: Instant) -> f64 {
    let sum: u64 = window.last(RATE_SLOTS, now).flatten().map(|it| it.load(Relaxed)).sum();
    sum as f64 / window.seconds(RATE_SLOTS, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(window: &SlidingWindow<AtomicU64>, now: Instant) -> Vec<Option<u64>> {
        window.last(SLOTS, now).map(|it| it.map(|it| it.load(Relaxed))).collect()
    }

    #[test]
    fn what_is_older_than_a_minute_is_forgotten() {
        let window = SlidingWindow::<AtomicU64>::default();
        let at = |seconds| window.begin + Duration::from_secs(seconds);
        window.at(at(0)).fetch_add(1, Relaxed);
        window.at(at(4)).fetch_add(1, Relaxed);
        window.at(at(12)).fetch_add(5, Relaxed);
        assert_eq!(seen(&window, at(12))[9..], [Some(2), None, Some(5)]);
        assert_eq!(seen(&window, at(59))[..3], [Some(2), None, Some(5)]);
        assert_eq!(seen(&window, at(60))[..2], [None, Some(5)]);
        window.at(at(60)).fetch_add(7, Relaxed);
        assert_eq!(seen(&window, at(60))[11], Some(7));
        assert_eq!(seen(&window, at(3600)), [None; SLOTS]);
    }

    #[test]
    fn a_count_that_comes_late_joins_the_span_that_has_taken_its_place() {
        let window = SlidingWindow::<AtomicU64>::default();
        let at = |seconds| window.begin + Duration::from_secs(seconds);
        window.at(at(60)).fetch_add(1, Relaxed);
        window.at(at(0)).fetch_add(1, Relaxed);
        assert_eq!(seen(&window, at(60))[11], Some(2));
    }

    #[test]
    fn rates_are_those_of_the_time_that_has_gone_by() {
        let window = SlidingWindow::<AtomicU64>::default();
        let at = |millis| window.begin + Duration::from_millis(millis);
        window.at(at(0)).fetch_add(30, Relaxed);
        for (millis, expected) in [(100, 30.0), (2000, 15.0), (12_000, 2.5), (15_000, 0.0)] {
            assert_eq!(per_second(&window, at(millis)), expected, "after {millis} ms");
        }
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let window = SlidingWindow::<AtomicU64>::default();
        let now = window.begin + Duration::from_secs(3600);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        window.at(now).fetch_add(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(seen(&window, now)[11], Some(4000));
    }
}
