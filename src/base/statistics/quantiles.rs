//! Quantiles of what was seen in the last minute, within 1.6 %, counted without a lock.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::since_begin;

/// The minute is forgotten in so many parts, each of them this long: Triton's.
const PARTS: usize = 5;
const PART: Duration = Duration::from_secs(12);

/// Values below this are told apart.
const EXACT: u64 = 1 << (BITS + 1);
/// Each doubling of a value has `1 << BITS` buckets.
const BITS: u32 = 5;
/// The highest doubling that is told apart; of microseconds these are 19 hours.
const HIGHEST: u32 = 35;
const BUCKETS: usize = EXACT as usize + ((HIGHEST - BITS) as usize) * (1 << BITS);

/// Values of the last minute by size.
pub struct Quantiles {
    parts: [Box<[AtomicU32]>; PARTS],
    /// The number of the part that is counted in.
    current: AtomicU64,
    turning: Mutex<()>,
}

impl Default for Quantiles {
    fn default() -> Quantiles {
        let part = |_| (0..BUCKETS).map(|_| AtomicU32::new(0)).collect();
        let parts = std::array::from_fn(part);
        Quantiles { parts, current: AtomicU64::new(0), turning: Mutex::new(()) }
    }
}

impl std::fmt::Debug for Quantiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Quantiles")
    }
}

impl Quantiles {
    /// Counts a value.
    pub fn observe(&self, value: u64, now: Instant) {
        let part = self.turn(now);
        self.parts[part][bucket(value)].fetch_add(1, Relaxed);
    }

    /// For each of `ranks`, from 0 to 1, the value that so much of the last minute was at most;
    /// NaN if there was nothing.
    pub fn at(&self, ranks: &[f64], now: Instant) -> Vec<f64> {
        self.turn(now);
        let sum = |bucket: usize| {
            self.parts.iter().map(|it| u64::from(it[bucket].load(Relaxed))).sum::<u64>()
        };
        let counts: Vec<u64> = (0..BUCKETS).map(sum).collect();
        let total: u64 = counts.iter().sum();
        let find = |rank: &f64| {
            let wanted = ((rank * total as f64).ceil() as u64).clamp(1, total.max(1));
            let mut seen = 0;
            let place = counts.iter().position(|it| {
                seen += it;
                wanted <= seen
            });
            place.map_or(f64::NAN, middle)
        };
        ranks.iter().map(find).collect()
    }

    /// Where to count; what is a minute old is forgotten.
    fn turn(&self, now: Instant) -> usize {
        let number = since_begin(now).as_secs() / PART.as_secs();
        if self.current.load(Relaxed) < number {
            let _turning = self.turning.lock();
            let last = self.current.load(Relaxed);
            let stale = (last + 1..=number).rev().take(PARTS);
            for part in stale {
                let part = &self.parts[part as usize % PARTS];
                part.iter().for_each(|it| it.store(0, Relaxed));
            }
            self.current.store(number.max(last), Relaxed);
        }
        number as usize % PARTS
    }
}

fn bucket(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let doubling = value.ilog2();
    if HIGHEST < doubling {
        return BUCKETS - 1;
    }
    let within = (value >> (doubling - BITS)) as usize & ((1 << BITS) - 1);
    EXACT as usize + ((doubling - BITS - 1) as usize) * (1 << BITS) + within
}

fn middle(bucket: usize) -> f64 {
    let Some(above) = bucket.checked_sub(EXACT as usize) else { return bucket as f64 };
    let (doubling, within) =
        ((above >> BITS) as u32 + BITS + 1, (above & ((1 << BITS) - 1)) as u64);
    let width = 1u64 << (doubling - BITS);
    (((1 << BITS) + within) * width) as f64 + width as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_near_the_middle_of_its_bucket() {
        let mut last = 0;
        for value in (0..3000).chain((12..36).map(|it| (1u64 << it) + 12_345)) {
            let place = bucket(value);
            assert!(last <= place && place < BUCKETS, "{value} in {place} after {last}");
            last = place;
            let error = (middle(place) - value as f64).abs();
            assert!(error <= value as f64 / 64.0, "{value} was told as {}", middle(place));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket((1 << 36) - 1), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_a_sorted_list() {
        let (quantiles, now) = (Quantiles::default(), Instant::now());
        assert!(quantiles.at(&[0.5], now)[0].is_nan());
        (1..=10_000).for_each(|it| quantiles.observe(it, now));
        let ranks = [0.0, 0.5, 0.9, 0.99, 0.999, 1.0];
        let expected = [1.0, 5000.0, 9000.0, 9900.0, 9990.0, 10_000.0];
        for (told, expected) in quantiles.at(&ranks, now).into_iter().zip(expected) {
            assert!((told - expected).abs() <= expected / 64.0, "{told}, expected {expected}");
        }
    }

    #[test]
    fn a_minute_later_all_is_forgotten() {
        let (quantiles, begin) = (Quantiles::default(), Instant::now());
        let median = |seconds| quantiles.at(&[0.5], begin + Duration::from_secs(seconds))[0];
        quantiles.observe(10, begin);
        quantiles.observe(20, begin + Duration::from_secs(30));
        quantiles.observe(20, begin + Duration::from_secs(30));
        assert_eq!((median(31), median(47)), (20.0, 20.0));
        quantiles.observe(10, begin + Duration::from_secs(59));
        quantiles.observe(10, begin + Duration::from_secs(59));
        quantiles.observe(10, begin + Duration::from_secs(59));
        assert_eq!(median(60), 10.0);
        assert!(median(130).is_nan());
    }
}
