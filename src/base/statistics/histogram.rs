//! Histograms with fixed bucket bounds, as Prometheus shows them, on sharded counters.

use super::sharded_counters::{ShardedCounters, ThreadShard};

/// Upper bounds of buckets in rising order.
///
/// Values are whole numbers of a small unit; bounds and sums are shown in a unit `scale` times as
/// large.
#[derive(Debug)]
pub struct BucketBounds {
    scale: f64,
    shown: Box<[f64]>,
    /// The bounds in the unit of the values.
    limits: Box<[i64]>,
    /// By the number of a value's bits, how many limits every such value exceeds: where the search
    /// begins.
    starts: [u16; 65],
}

/// The counts of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramSnapshot {
    /// Upper bounds in rising order, and how many values are at most each.
    pub buckets: Vec<(f64, u64)>,
    /// How many values were counted.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

impl BucketBounds {
    /// Bounds for values that are counted in units of `1 / scale`; the infinite bound may be left
    /// out.
    pub fn new(bounds: &[f64], scale: f64) -> BucketBounds {
        let shown: Box<[f64]> = bounds.iter().copied().filter(|it| *it < f64::INFINITY).collect();
        // A millionth: 0.000025 s are 25,000 ns, whichever way the product is rounded.
        let limits: Box<[i64]> =
            shown.iter().map(|it| (it * scale + 1e-6).floor() as i64).collect();
        let least = |bits: usize| if bits == 0 { 0 } else { 1i128 << (bits - 1) };
        let exceeded = |bits| limits.partition_point(|it| i128::from(*it) < least(bits)) as u16;
        BucketBounds { scale, shown, starts: std::array::from_fn(exceeded), limits }
    }

    /// How many counters a histogram takes: one a bound, one for larger values, and the sum.
    pub fn length(&self) -> usize {
        self.limits.len() + 2
    }

    /// Counts a value in the counters that begin at `begin`.
    pub fn observe(&self, numbers: &ThreadShard<'_>, begin: usize, value: u64) {
        let value = value.min(i64::MAX as u64);
        let mut place = usize::from(self.starts[(u64::BITS - value.leading_zeros()) as usize]);
        while self.limits.get(place).is_some_and(|it| *it < value as i64) {
            place += 1;
        }
        numbers.add(begin + place, 1);
        numbers.add(begin + self.limits.len() + 1, value);
    }

    /// The snapshot of one histogram's counters; its counts agree with each other.
    pub fn snapshot(&self, numbers: &[u64]) -> HistogramSnapshot {
        let (counts, sum) = numbers.split_at(self.limits.len() + 1);
        let mut count = 0;
        let cumulative: Vec<u64> = counts
            .iter()
            .map(|it| {
                count += it;
                count
            })
            .collect();
        let sum = sum.first().map_or(0.0, |it| *it as f64 / self.scale);
        HistogramSnapshot {
            buckets: self.shown.iter().copied().zip(cumulative).collect(),
            count,
            sum,
        }
    }
}

/// A single histogram.
#[derive(Debug)]
pub struct Histogram {
    bounds: BucketBounds,
    numbers: ShardedCounters,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(bounds: BucketBounds) -> Histogram {
        let numbers = ShardedCounters::new(bounds.length());
        Histogram { bounds, numbers }
    }

    /// Counts a value.
    pub fn observe(&self, value: u64) {
        self.bounds.observe(&self.numbers.this_thread(), 0, value);
    }

    /// Its counts at this moment.
    pub fn snapshot(&self) -> HistogramSnapshot {
        self.bounds.snapshot(&self.numbers.totals())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_up_to_their_bound() {
        let histogram = Histogram::new(BucketBounds::new(&[1e-5, 2.5e-5, 1.0, f64::INFINITY], 1e9));
        for value in [0, 10_000, 10_001, 25_000, 25_001, 1_000_000_000, 3_000_000_000] {
            histogram.observe(value);
        }
        let HistogramSnapshot { buckets, count, sum } = histogram.snapshot();
        assert_eq!(buckets, [(1e-5, 2), (2.5e-5, 4), (1.0, 6)]);
        assert_eq!((count, sum), (7, 4.000070002));
    }

    #[test]
    fn every_value_finds_its_place() {
        let bounds = [-3.0, 0.0, 1.0, 2.0, 3.0, 4.0, 7.0, 8.0, 9.0, 1000.0, 1024.0, 1e12];
        let values = (0..1100).chain([1 << 39, 1_000_000_000_000, 1_000_000_000_001, u64::MAX]);
        for value in values {
            let histogram = Histogram::new(BucketBounds::new(&bounds, 1.0));
            histogram.observe(value);
            let expected = bounds.map(|it| (it, u64::from(value as f64 <= it)));
            assert_eq!(histogram.snapshot().buckets, expected, "{value}");
        }
    }

    #[test]
    fn bounds_between_whole_values_are_fine() {
        let histogram = Histogram::new(BucketBounds::new(&[-1.0, 0.5, 1.5], 1.0));
        [0, 1, 2].into_iter().for_each(|it| histogram.observe(it));
        assert_eq!(histogram.snapshot().buckets, [(-1.0, 0), (0.5, 1), (1.5, 2)]);
    }
}
