//! How near the process is to its limits of connections and descriptors; pure.

use rustix::process::{Resource, getrlimit};

/// Descriptors that are left to the server itself: workers, segments, logs.
const RESERVED_DESCRIPTORS: usize = 64;
/// Without a limit of the process: more than any machine serves.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections at a time, over all gateways.
    pub connections: usize,
    /// Descriptors the process may have open.
    pub descriptors: usize,
}

/// What is to be done about a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Take it.
    Admit,
    /// Take it, and close some that are idle.
    Reclaim,
    /// Close it, and some that are idle.
    Refuse,
}

impl ConnectionLimits {
    /// Those of this process; `connections` unless they follow from the descriptors.
    pub fn of_process(connections: Option<usize>) -> ConnectionLimits {
        let descriptors = getrlimit(Resource::Nofile).current;
        let descriptors = descriptors.map_or(MAX_DESCRIPTORS, |it| {
            usize::try_from(it).unwrap_or(usize::MAX).min(MAX_DESCRIPTORS)
        });
        ConnectionLimits {
            connections: connections.unwrap_or(descriptors / 4 * 3).max(1),
            descriptors,
        }
    }

    /// For the connection with this descriptor, when `open` others are open. The kernel gives out
    /// the lowest free number, so all below it are in use.
    pub(super) fn verdict(self, open: usize, descriptor: usize) -> Verdict {
        let reserved = RESERVED_DESCRIPTORS.min(self.descriptors / 4);
        let is_full = |used: usize, most: usize| most.saturating_mul(4) / 5 <= used;
        if self.connections <= open || self.descriptors - reserved <= descriptor {
            Verdict::Refuse
        } else if is_full(open, self.connections) || is_full(descriptor, self.descriptors) {
            Verdict::Reclaim
        } else {
            Verdict::Admit
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_go_before_new_ones_are_refused() {
        let limits = ConnectionLimits { connections: 100, descriptors: 1000 };
        for (open, descriptor, expected) in [
            (0, 10, Verdict::Admit),
            (79, 90, Verdict::Admit),
            (80, 90, Verdict::Reclaim),
            (99, 110, Verdict::Reclaim),
            (100, 110, Verdict::Refuse),
            (5, 799, Verdict::Admit),
            (5, 800, Verdict::Reclaim),
            (5, 935, Verdict::Reclaim),
            (5, 936, Verdict::Refuse),
        ] {
            assert_eq!(limits.verdict(open, descriptor), expected, "{open} {descriptor}");
        }
        let least = ConnectionLimits { connections: 1, descriptors: 8 };
        assert_eq!(least.verdict(0, 3), Verdict::Reclaim);
    }

    #[test]
    fn connections_follow_from_descriptors_unless_they_are_given() {
        let limits = ConnectionLimits::of_process(None);
        assert!(limits.connections < limits.descriptors);
        assert_eq!(ConnectionLimits::of_process(Some(7)).connections, 7);
    }
}
