//! The pace of a client: how slowly it may send a request, or take an answer.

use std::time::Duration;

/// A client that sends or takes less holds what it is about for nothing.
const MIN_BYTES_PER_SECOND: u128 = 500;

/// Were these too few bytes for so long a time?
pub(crate) fn is_slow(bytes: usize, taken: Duration) -> bool {
    (bytes as u128) * 1000 < MIN_BYTES_PER_SECOND * taken.as_millis()
}

/// How bytes of a client come while they are waited for, looked at in windows of time: what came fast
/// at first excuses no drips later.
#[derive(Debug, Default)]
pub(crate) struct ArrivalPace {
    /// When the window began.
    began: Duration,
    /// What came in it.
    bytes: usize,
}

impl ArrivalPace {
    /// More has come at the time `now`, by any clock that began with the first wait. Was it too slow
    /// for longer than `limit`? Zero: for ever.
    pub(crate) fn is_slow_after(&mut self, bytes: usize, now: Duration, limit: Duration) -> bool {
        self.bytes += bytes;
        let taken = now.saturating_sub(self.began);
        if limit.is_zero() || taken <= limit {
            return false;
        }
        let bytes = std::mem::take(&mut self.bytes);
        self.began = now;
        is_slow(bytes, taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_fast_at_first_excuses_no_drips_later() {
        let (limit, second) = (Duration::from_secs(30), Duration::from_secs(1));
        let mut pace = ArrivalPace::default();
        assert!(!pace.is_slow_after(1 << 20, second, limit));
        let slow_at = (2..100).find(|at| pace.is_slow_after(1, second * *at, limit));
        assert_eq!(slow_at, Some(62));
        let mut steady = ArrivalPace::default();
        assert!(!(1..1000).any(|at| steady.is_slow_after(500, second * at, limit)));
        assert!(!ArrivalPace::default().is_slow_after(0, 99 * second, Duration::ZERO));
    }

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
