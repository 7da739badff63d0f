//! The buckets of log-linear histograms: equally wide buckets within each power of two.

/// A division of whole numbers into `1 << BITS` buckets for each power of two. Values below
/// `2 << BITS` have a bucket each; a wider bucket spans at most `1 / (1 << BITS)` of its values.
pub struct LogLinear<const BITS: u32>;

impl<const BITS: u32> LogLinear<BITS> {
    /// How many buckets values of up to `bits` bits need; more than `BITS`.
    pub const fn buckets(bits: u32) -> usize {
        ((bits - BITS + 1) as usize) << BITS
    }

    /// The bucket that counts `value`.
    pub const fn index(value: u64) -> usize {
        let octave = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
        ((octave as usize) << BITS) + (value >> octave) as usize
    }

    /// The smallest value of a bucket.
    pub const fn lower(index: usize) -> u64 {
        let octave = Self::octave(index);
        ((index - (octave << BITS)) as u64) << octave
    }

    /// How many values a bucket counts.
    pub const fn width(index: usize) -> u64 {
        1 << Self::octave(index)
    }

    const fn octave(index: usize) -> usize {
        (index >> BITS).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const BITS: u32>() {
        let buckets = LogLinear::<BITS>::buckets(64);
        let mut next = 0;
        for index in 0..buckets {
            let (lower, width) = (LogLinear::<BITS>::lower(index), LogLinear::<BITS>::width(index));
            assert_eq!(lower, next, "no gap before bucket {index} of {BITS} bits");
            let last = lower + (width - 1);
            let found = [lower, last].map(LogLinear::<BITS>::index);
            assert_eq!(found, [index; 2], "{lower} to {last}");
            assert!(width == 1 || width << BITS <= lower, "{width} at {lower}");
            next = last.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last bucket ends with the largest number");
    }

    #[test]
    fn buckets_join_without_gaps() {
        check::<4>();
        check::<5>();
        check::<7>();
    }
}
