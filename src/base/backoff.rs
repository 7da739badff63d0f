//! Back-off: how long to wait before something that ended is started again.

use std::time::Duration;

const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// So many in a row may end before they have answered anything, and the next is started at once.
const FREE_RESTARTS: u32 = 2;

/// Pauses that grow while workers, or engines, end or refuse to start one after the other.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It has ended; `is_proven`: it had answered something before.
    pub fn ended(&mut self, is_proven: bool) -> Duration {
        if is_proven {
            self.failures = 0;
        }
        self.failures += 1;
        self.pause()
    }

    /// It did not even get ready.
    pub fn refused(&mut self) -> Duration {
        self.failures = self.failures.max(FREE_RESTARTS) + 1;
        self.pause()
    }

    fn pause(&self) -> Duration {
        match self.failures.checked_sub(FREE_RESTARTS + 1) {
            None => Duration::ZERO,
            Some(doublings) => MIN_PAUSE.saturating_mul(1 << doublings.min(16)).min(MAX_PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `p`: ended after it had answered, `e`: ended before, `r`: refused to start.
    fn check(story: &str, expected: &[u64]) {
        let mut backoff = Backoff::default();
        let pauses = story.chars().map(|it| match it {
            'p' => backoff.ended(true),
            'e' => backoff.ended(false),
            _ => backoff.refused(),
        });
        let pauses: Vec<u128> = pauses.map(|it| it.as_millis()).collect();
        assert_eq!(
            pauses,
            expected.iter().map(|it| u128::from(*it)).collect::<Vec<_>>(),
            "{story}"
        );
    }

    #[test]
    fn pauses_grow_until_a_worker_answers() {
        check("pppp", &[0, 0, 0, 0]);
        check("peeee", &[0, 0, 100, 200, 400]);
        check("peeepe", &[0, 0, 100, 200, 0, 0]);
        check("rrr", &[100, 200, 400]);
        check("prre", &[0, 100, 200, 400]);
        check(&"r".repeat(9), &[100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(Backoff { failures: u32::MAX - 1 }.ended(false), MAX_PAUSE);
    }
}
