//! A log-linear distribution of durations: the bucket of each, and quantiles of their counts.

use std::time::Duration;

use super::log_linear::LogLinear;

/// Sixteen buckets for each power of two.
type Buckets = LogLinear<4>;
/// The finest bucket is `1 << UNIT_BITS` nanoseconds wide.
const UNIT_BITS: u32 = 7;
/// Durations of up to 36 minutes, `1 << 34` units; the last bucket also counts all longer
/// ones.
pub(super) const BUCKETS: usize = Buckets::buckets(34);

/// How many durations fell into each bucket. A quantile is exact to about 3 %, 6 % at worst, or to
/// 64 ns if that is more.
#[derive(Clone, Copy, Debug)]
pub(super) struct DurationDistribution<'a>(pub(super) &'a [u64]);

impl DurationDistribution<'_> {
    /// The duration that a share of them, from 0 to 1, does not exceed; `None` without any.
    pub(super) fn quantile(self, share: f64) -> Option<Duration> {
        let all: u64 = self.0.iter().sum();
        let rank = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut below = 0;
        for (index, count) in self.0.iter().enumerate() {
            if rank <= below + count {
                // Durations within a bucket are taken to lie at equal distances.
                let (from, to) = (lower(index), lower(index + 1));
                let part = ((rank - below) as f64 - 0.5) / *count as f64;
                let ns = from as f64 + part * (to - from) as f64;
                return Some(Duration::from_nanos(ns as u64));
            }
            below += count;
        }
        None
    }
}

/// Where a duration counts.
pub(super) fn bucket(duration: Duration) -> usize {
    let units = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX) >> UNIT_BITS;
    Buckets::index(units).min(BUCKETS - 1)
}

/// The shortest duration of a bucket, in nanoseconds.
fn lower(index: usize) -> u64 {
    Buckets::lower(index) << UNIT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_join_without_gaps() {
        for index in 0..BUCKETS {
            let (from, to) = (lower(index), lower(index + 1));
            assert_eq!(bucket(Duration::from_nanos(from)), index, "from {from} ns");
            assert_eq!(bucket(Duration::from_nanos(to - 1)), index, "to {to} ns");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    fn counts(durations: impl IntoIterator<Item = Duration>) -> Vec<u64> {
        let mut counts = vec![0; BUCKETS];
        durations.into_iter().for_each(|it| counts[bucket(it)] += 1);
        counts
    }

    #[test]
    fn quantiles_are_near_the_true_ones() {
        for unit in [2_500, 70_000, 9_000_000, 1_000_000_000_u64] {
            let counts = counts((1..=1000).map(|it| Duration::from_nanos(it * unit)));
            for (share, expected) in [(0.001, 1), (0.5, 500), (0.9, 900), (0.99, 990), (1.0, 1000)]
            {
                let got = DurationDistribution(&counts).quantile(share).unwrap();
                let (got, expected) = (got.as_nanos() as f64, (expected * unit) as f64);
                let off = (got - expected).abs() / expected;
                assert!(off < 0.0625, "{share} of {unit}: {got}, expected {expected}");
            }
        }
    }

    #[test]
    fn there_may_be_none() {
        assert_eq!(DurationDistribution(&[0; BUCKETS]).quantile(0.5), None);
        let counts = counts([1, 100, 100].map(Duration::from_millis));
        let median = DurationDistribution(&counts).quantile(0.5).unwrap();
        assert!((95..105).contains(&median.as_millis()), "{median:?}");
    }
}
