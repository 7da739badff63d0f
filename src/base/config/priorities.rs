//! Priority levels, and the policy of each level's queue: how long, and how many, requests may wait.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The priority levels of a model's requests, each of which has a queue of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PriorityLevels {
    /// From 1, which is served first, to this one; 0: there is one queue for all.
    pub levels: u64,
    /// Of requests that name no level that there is.
    pub default_level: u64,
    pub default_policy: QueuePolicy,
    /// Of the levels that have another one.
    pub policies: BTreeMap<u64, QueuePolicy>,
}

/// How long, and how many, requests may wait in one queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueuePolicy {
    /// Whoever waited too long goes on waiting behind the others of its level, and is not refused.
    pub delays: bool,
    /// Zero: nobody ever waits too long, whatever a request says.
    pub timeout: Duration,
    /// A request may say a shorter time.
    pub allows_override: bool,
    /// 0: no limit but the server's own.
    pub max_size: u32,
}

impl PriorityLevels {
    /// The level of a request with this `priority`.
    pub fn level_of(&self, priority: u64) -> u64 {
        if (1..=self.levels).contains(&priority) { priority } else { self.default_level }
    }

    /// The policy of one level.
    pub fn policy_of(&self, level: u64) -> &QueuePolicy {
        self.policies.get(&level).unwrap_or(&self.default_policy)
    }

    /// May a request wait too long, whatever its level?
    pub fn is_timed(&self) -> bool {
        let mut all = self.policies.values().chain([&self.default_policy]);
        all.any(|policy| !policy.timeout.is_zero())
    }
}

impl QueuePolicy {
    /// When a request has waited too long that waits since then, and asks for `timeout_us`
    /// microseconds, if that is not 0; `None`: never.
    pub fn expiry(&self, timeout_us: u64, since: Instant) -> Option<Instant> {
        // One that is beyond all times is none.
        since.checked_add(self.timeout_of(Duration::from_micros(timeout_us))?)
    }

    fn timeout_of(&self, asked: Duration) -> Option<Duration> {
        let is_shorter = self.allows_override && !asked.is_zero() && asked < self.timeout;
        let timeout = if is_shorter { asked } else { self.timeout };
        (!timeout.is_zero()).then_some(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_that_is_no_level_is_the_default_one() {
        let levels = PriorityLevels { levels: 5, default_level: 3, ..PriorityLevels::default() };
        for (priority, expected) in [(0, 3), (1, 1), (5, 5), (6, 3), (u64::MAX, 3)] {
            assert_eq!(levels.level_of(priority), expected, "{priority}");
        }
        assert_eq!(PriorityLevels::default().level_of(7), 0);
        let all = PriorityLevels { levels: u64::MAX, default_level: 1, ..levels };
        assert_eq!(all.level_of(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_request_may_ask_for_less_time_where_that_is_allowed_and_never_for_more() {
        for (timeout, allows_override, asked, expected) in [
            (0, false, 0, None),
            (0, true, 5, None),
            (9, false, 5, Some(9)),
            (9, true, 5, Some(5)),
            (9, true, 0, Some(9)),
            (9, true, 10, Some(9)),
        ] {
            let us = Duration::from_micros;
            let policy =
                QueuePolicy { timeout: us(timeout), allows_override, ..QueuePolicy::default() };
            assert_eq!(policy.timeout_of(us(asked)), expected.map(us), "{timeout} {asked}");
            let since = Instant::now();
            let expiry = expected.map(|it| since + us(it));
            assert_eq!(policy.expiry(asked, since), expiry, "{timeout} {asked}");
        }
        let endless = QueuePolicy { timeout: Duration::MAX, ..QueuePolicy::default() };
        assert_eq!(endless.expiry(0, Instant::now()), None);
    }
}
