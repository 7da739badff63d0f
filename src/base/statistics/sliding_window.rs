//! Counters over a sliding window, the last minute: counted by thread, summed where a slot of the
//! window begins.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::sharded_counters::{ShardedCounters, ThreadShard};

/// The length of a slot.
pub const SLOT_DURATION: Duration = Duration::from_secs(5);
/// Slots in the window: a minute.
pub const SLOTS: usize = 12;
/// Slots that rates are taken over: few enough to show a change, enough to be steady.
pub const RATE_SLOTS: usize = 3;

/// A row of counters that are summed for each slot of the last minute. Only the first count of a
/// slot takes a lock; no count writes what another thread writes.
#[derive(Debug)]
pub struct WindowCounters {
    begin: Instant,
    counters: ShardedCounters,
    /// The number of the slot that is counted in, from 1 on; 0: nothing was counted.
    current: AtomicU64,
    /// Slots in which something was counted, from old to new.
    slots: Mutex<VecDeque<SlotStart>>,
}

/// What had been counted, since the beginning, when a slot began.
#[derive(Debug)]
struct SlotStart {
    number: u64,
    /// Places of counters, and their totals; the others were 0.
    totals: Box<[(u32, u64)]>,
}

impl SlotStart {
    /// What was counted from here to these totals.
    fn until(&self, mut totals: Vec<u64>) -> Vec<u64> {
        for (place, before) in &self.totals {
            let total = &mut totals[*place as usize];
            *total = total.saturating_sub(*before);
        }
        totals
    }

    fn dense(&self, length: usize) -> Vec<u64> {
        let mut totals = vec![0; length];
        self.totals.iter().for_each(|(place, total)| totals[*place as usize] = *total);
        totals
    }
}

impl WindowCounters {
    /// A row of `length` counters.
    pub fn new(length: usize) -> WindowCounters {
        WindowCounters {
            begin: Instant::now(),
            counters: ShardedCounters::new(length),
            current: AtomicU64::new(0),
            slots: Mutex::default(),
        }
    }

    /// To add to the counters, in the slot that `now` lies in; what comes late is added to the slot
    /// that has begun meanwhile.
    #[inline]
    pub fn at(&self, now: Instant) -> ThreadShard<'_> {
        let number = self.number(now);
        if self.current.load(Relaxed) < number {
            self.turn(number);
        }
        self.counters.this_thread()
    }

    /// All that was ever counted.
    pub fn totals(&self) -> Vec<u64> {
        self.counters.totals()
    }

    /// What was counted in the last slots, the current one included.
    pub fn last(&self, slots: usize, now: Instant) -> Vec<u64> {
        let first = (self.number(now) + 1).saturating_sub(slots.min(SLOTS) as u64);
        // Under the lock: no slot begins between its totals and these.
        let starts = self.slots.lock();
        let totals = self.counters.totals();
        match starts.iter().find(|it| first <= it.number) {
            Some(start) => start.until(totals),
            None => vec![0; totals.len()],
        }
    }

    /// What was counted in each slot, from old to new; `None` where nothing was.
    pub fn by_slot(&self, now: Instant) -> [Option<Vec<u64>>; SLOTS] {
        let newest = self.number(now);
        let starts = self.slots.lock();
        let totals = self.counters.totals();
        let mut all = [const { None }; SLOTS];
        for (index, start) in starts.iter().enumerate() {
            let back = usize::try_from(newest.saturating_sub(start.number)).unwrap_or(usize::MAX);
            let Some(place) = (SLOTS - 1).checked_sub(back) else { continue };
            let end = starts.get(index + 1).map(|next| next.dense(totals.len()));
            all[place] = Some(start.until(end.unwrap_or_else(|| totals.clone())));
        }
        all
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
    fn turn(&self, number: u64) {
        let mut slots = self.slots.lock();
        if self.current.load(Relaxed) < number {
            let totals = self.counters.totals().into_iter();
            let totals = (0..).zip(totals).filter(|(_, total)| *total != 0).collect();
            slots.retain(|it| number < it.number + SLOTS as u64);
            slots.push_back(SlotStart { number, totals });
            self.current.store(number, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(window: &WindowCounters, now: Instant) -> Vec<Option<u64>> {
        window.by_slot(now).iter().map(|it| it.as_ref().map(|it| it[0])).collect()
    }

    fn per_second(window: &WindowCounters, now: Instant) -> f64 {
        window.last(RATE_SLOTS, now)[0] as f64 / window.seconds(RATE_SLOTS, now)
    }

    #[test]
    fn what_is_older_than_a_minute_is_forgotten() {
        let window = WindowCounters::new(1);
        let at = |seconds| window.begin + Duration::from_secs(seconds);
        window.at(at(0)).add(0, 1);
        window.at(at(4)).add(0, 1);
        window.at(at(12)).add(0, 5);
        assert_eq!(seen(&window, at(12))[9..], [Some(2), None, Some(5)]);
        assert_eq!(seen(&window, at(59))[..3], [Some(2), None, Some(5)]);
        assert_eq!(window.last(SLOTS, at(59)), [7]);
        assert_eq!(seen(&window, at(60))[..2], [None, Some(5)]);
        assert_eq!(window.last(SLOTS, at(60)), [5]);
        window.at(at(60)).add(0, 7);
        assert_eq!(seen(&window, at(60))[11], Some(7));
        assert_eq!(window.last(SLOTS, at(60)), [12]);
        assert_eq!(window.last(1, at(60)), [7]);
        assert_eq!(seen(&window, at(3600)), [None; SLOTS]);
        assert_eq!((window.last(SLOTS, at(3600)), window.totals()), (vec![0], vec![14]));
    }

    #[test]
    fn a_count_that_comes_late_joins_the_slot_that_has_begun() {
        let window = WindowCounters::new(1);
        let at = |seconds| window.begin + Duration::from_secs(seconds);
        window.at(at(60)).add(0, 1);
        window.at(at(0)).add(0, 1);
        assert_eq!(seen(&window, at(60))[11], Some(2));
    }

    #[test]
    fn counters_of_a_row_do_not_mix() {
        let window = WindowCounters::new(3);
        let at = |seconds| window.begin + Duration::from_secs(seconds);
        window.at(at(0)).add(2, 4);
        window.at(at(5)).add(0, 6);
        window.at(at(5)).add(2, 1);
        let all = window.by_slot(at(5));
        assert_eq!(all[10..], [Some(vec![0, 0, 4]), Some(vec![6, 0, 1])]);
        assert_eq!((window.last(1, at(5)), window.totals()), (vec![6, 0, 1], vec![6, 0, 5]));
    }

    #[test]
    fn rates_are_those_of_the_time_that_has_gone_by() {
        let window = WindowCounters::new(1);
        let at = |millis| window.begin + Duration::from_millis(millis);
        window.at(at(0)).add(0, 30);
        for (millis, expected) in [(100, 30.0), (2000, 15.0), (12_000, 2.5), (15_000, 0.0)] {
            assert_eq!(per_second(&window, at(millis)), expected, "after {millis} ms");
        }
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let window = WindowCounters::new(1);
        let at = |seconds| window.begin + Duration::from_secs(seconds);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for count in 0..1000 {
                        window.at(at(3600 + count / 100)).add(0, 1);
                    }
                });
            }
        });
        assert_eq!(seen(&window, at(3609)).into_iter().flatten().sum::<u64>(), 4000);
        assert_eq!(window.last(SLOTS, at(3609)), [4000]);
    }
}
