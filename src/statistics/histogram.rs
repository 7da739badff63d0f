//! Counts of values by size, added to without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How often values were at most each of some bounds, and their sum.
///
/// Values are whole numbers of a small unit; bounds and sum are told in one `scale` times as large.
#[derive(Debug)]
pub struct Histogram {
    scale: f64,
    bounds: Box<[f64]>,
    /// The bounds in the unit of the values.
    limits: Box<[i64]>,
    /// One more than the bounds; each counts its own.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// What a histogram holds at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Upper bounds in rising order, and how many values were at most that.
    pub buckets: Vec<(f64, u64)>,
    /// How many values there were.
    pub count: u64,
    /// All of them together.
    pub sum: f64,
}

impl Histogram {
    /// Of values that are counted in parts of `1 / scale`; bounds rise, and the infinite one need
    /// not be among them.
    pub fn new(bounds: &[f64], scale: f64) -> Histogram {
        let bounds: Box<[f64]> = bounds.iter().copied().filter(|it| *it < f64::INFINITY).collect();
        // A millionth: 0.000025 s are 25,000 ns, whichever way the product is rounded.
        let limits = bounds.iter().map(|it| (it * scale + 1e-6).floor() as i64).collect();
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { scale, bounds, limits, counts, sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub fn observe(&self, value: u64) {
        let place = self.limits.partition_point(|it| *it < value as i64);
        self.counts[place].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// What it holds; the counts agree with each other.
    pub fn snapshot(&self) -> Snapshot {
        let mut count = 0;
        let mut cumulative = self.counts.iter().map(|it| {
            count += it.load(Relaxed);
            count
        });
        let buckets = self.bounds.iter().copied().zip(&mut cumulative).collect();
        cumulative.for_each(drop);
        Snapshot { buckets, count, sum: self.sum.load(Relaxed) as f64 / self.scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_up_to_their_bound() {
        let histogram = Histogram::new(&[1e-5, 2.5e-5, 1.0, f64::INFINITY], 1e9);
        for value in [0, 10_000, 10_001, 25_000, 25_001, 1_000_000_000, 3_000_000_000] {
            histogram.observe(value);
        }
        let Snapshot { buckets, count, sum } = histogram.snapshot();
        assert_eq!(buckets, [(1e-5, 2), (2.5e-5, 4), (1.0, 6)]);
        assert_eq!((count, sum), (7, 4.000070002));
    }

    #[test]
    fn bounds_between_whole_values_are_fine() {
        let histogram = Histogram::new(&[-1.0, 0.5, 1.5], 1.0);
        [0, 1, 2].into_iter().for_each(|it| histogram.observe(it));
        assert_eq!(histogram.snapshot().buckets, [(-1.0, 0), (0.5, 1), (1.5, 2)]);
    }
}
