//! The pace of a client: how slowly it may send a request, or take an answer.

use std::time::Duration;

/// A client that sends or takes less holds what it is about for nothing.
const MIN_BYTES_PER_SECOND: u128 = 500;

/// Were these too few bytes for so long a time?
pub(crate) fn is_slow(bytes: usize, taken: Duration) -> bool {
    (bytes as u128) * 1000 < MIN_BYTES_PER_SECOND * taken.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drips_are_slow_and_slow_links_are_not() {
        for (received, seconds, expected) in [
            (31, 31, true),
            (15_499, 31, true),
            (15_500, 31, false),
            (usize::MAX, 1 << 40, false),
            (0, 1, true),
        ] {
            assert_eq!(is_slow(received, Duration::from_secs(seconds)), expected, "{received}");
        }
    }
}
