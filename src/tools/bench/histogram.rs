//! Times counted in buckets less than 1 % wide: as much memory for a million as for one.

use std::time::Duration;

use troupe_base::statistics::LogLinear;

/// 128 buckets for each power of two: 1/128 is the error of a time read from them.
type Buckets = LogLinear<7>;

const BUCKETS: usize = Buckets::buckets(u64::BITS);

/// Counted nanoseconds.
#[derive(Clone)]
pub(super) struct LatencyHistogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram { counts: vec![0; BUCKETS], count: 0, sum: 0, max: 0 }
    }
}

impl LatencyHistogram {
    /// One more.
    pub(super) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[Buckets::index(ns)] += 1;
        self.count += 1;
        self.sum += u128::from(ns);
        self.max = self.max.max(ns);
    }

    /// Those of another thread too.
    pub(super) fn merge(&mut self, other: &LatencyHistogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(ours, theirs)| *ours += theirs);
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The mean in nanoseconds; 0 without any.
    pub(super) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The longest in nanoseconds; 0 without any.
    pub(super) fn max(&self) -> f64 {
        self.max as f64
    }

    /// The time in nanoseconds that this percentage of them does not exceed; 0 without any.
    pub(super) fn percentile(&self, percent: f64) -> f64 {
        let wanted = ((percent / 100.0 * self.count as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if wanted <= below {
                return middle(index).min(self.max as f64);
            }
        }
        0.0
    }
}

/// The middle of the times that a bucket counts.
fn middle(index: usize) -> f64 {
    Buckets::lower(index) as f64 + (Buckets::width(index) - 1) as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_near_its_times() {
        for ns in (0..64)
            .flat_map(|it| [1u64 << it, (1 << it) + (1 << it) / 3, (1 << it) - 1 + (1 << it)])
        {
            let near = middle(Buckets::index(ns));
            assert!((near - ns as f64).abs() <= ns as f64 / 128.0, "{ns}: {near}");
        }
        assert!(Buckets::index(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_those_of_sorted_times() {
        let mut all = LatencyHistogram::default();
        assert_eq!((all.percentile(99.0), all.mean(), all.max()), (0.0, 0.0, 0.0));
        for half in [1..=500u64, 501..=1000] {
            let mut part = LatencyHistogram::default();
            half.for_each(|it| part.add(Duration::from_micros(it)));
            all.merge(&part);
        }
        assert_eq!((all.count(), all.mean(), all.max()), (1000, 500_500.0, 1e6));
        for (percent, expected) in [(50.0, 5e5), (90.0, 9e5), (99.0, 9.9e5), (100.0, 1e6)] {
            let found = all.percentile(percent);
            assert!((found - expected).abs() < expected / 100.0, "p{percent}: {found}");
        }
        let mut two = LatencyHistogram::default();
        two.add(Duration::from_nanos(10));
        two.add(Duration::from_nanos(20));
        assert_eq!((two.percentile(50.0), two.percentile(51.0)), (10.0, 20.0));
    }
}
