//! Quantiles of the last minute's values, exact to 1.6 %, counted without a lock.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{clock::since_begin, log_linear::LogLinear};

/// The minute is forgotten in parts of this length, as in Triton.
const PARTS: usize = 5;
const PART_DURATION: Duration = Duration::from_secs(12);

/// 32 buckets for each power of two.
type Buckets = LogLinear<5>;
/// Values of up to 36 bits, in microseconds 19 hours; the last bucket also counts all larger ones.
const BUCKETS: usize = Buckets::buckets(36);

/// Counts the values of the last minute by size.
pub struct Quantiles {
    parts: [Box<[AtomicU32]>; PARTS],
    /// The number of the part that counts now.
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

    /// For each of `ranks`, from 0 to 1, the value that this share of the last minute's values does
    /// not exceed; NaN if there are none.
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

    /// The part to count in, after clearing the parts that are a minute old.
    fn turn(&self, now: Instant) -> usize {
        let number = since_begin(now).as_secs() / PART_DURATION.as_secs();
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
    Buckets::index(value).min(BUCKETS - 1)
}

/// The middle of a bucket's values; the value itself where the bucket has only one.
fn middle(index: usize) -> f64 {
    let (lower, width) = (Buckets::lower(index) as f64, Buckets::width(index));
    if width == 1 { lower } else { lower + width as f64 / 2.0 }
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
