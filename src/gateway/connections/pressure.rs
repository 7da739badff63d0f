//! How near the process is to its limits of connections and descriptors; pure.

use rustix::process::{Resource, getrlimit};

/// Descriptors that are left to the server itself: workers, segments, logs.
const RESERVED_DESCRIPTORS: usize = 64;
/// Connections of the metrics port, and the descriptors that are kept for them.
const METRICS_CONNECTIONS: usize = 64;
/// Without a limit of the process: more than any machine serves.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections at a time, over all gateways that share the table.
    pub connections: usize,
    /// Descriptors the process may have open.
    pub descriptors: usize,
    /// Of these, those that are left to others.
    pub reserved: usize,
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
        let descriptors = max_descriptors();
        ConnectionLimits {
            connections: connections.unwrap_or(descriptors / 4 * 3).max(1),
            descriptors,
            reserved: (RESERVED_DESCRIPTORS + METRICS_CONNECTIONS).min(descriptors / 4),
        }
    }

    /// Those of the metrics port: whoever fills the other ports takes none of them, so that probes
    /// are answered.
    pub fn of_metrics() -> ConnectionLimits {
        let descriptors = max_descriptors();
        let reserved = RESERVED_DESCRIPTORS.min(descriptors / 8);
        ConnectionLimits { connections: METRICS_CONNECTIONS, descriptors, reserved }
    }

    /// For the connection with this descriptor, when `open` others are open. The kernel gives out
    /// the lowest free number, so all below it are in use.
    pub(super) fn verdict(self, open: usize, descriptor: usize) -> Verdict {
        let is_full = |used: usize, most: usize| most.saturating_mul(4) / 5 <= used;
        if self.connections <= open || self.descriptors - self.reserved <= descriptor {
            Verdict::Refuse
        } else if is_full(open, self.connections) || is_full(descriptor, self.descriptors) {
            Verdict::Reclaim
        } else {
            Verdict::Admit
        }
    }
}

fn max_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit
        .map_or(MAX_DESCRIPTORS, |it| usize::try_from(it).unwrap_or(usize::MAX))
        .min(MAX_DESCRIPTORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_go_before_new_ones_are_refused() {
        let limits = ConnectionLimits { connections: 100, descriptors: 1000, reserved: 64 };
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
        let least = ConnectionLimits { connections: 1, descriptors: 8, reserved: 2 };
        assert_eq!(least.verdict(0, 3), Verdict::Reclaim);
    }

    #[test]
    fn connections_follow_from_descriptors_unless_they_are_given() {
        let limits = ConnectionLimits::of_process(None);
        assert!(limits.connections < limits.descriptors);
        let metrics = ConnectionLimits::of_metrics();
        assert!(metrics.reserved < limits.reserved, "metrics come where others are refused");
        assert_eq!(ConnectionLimits::of_process(Some(7)).connections, 7);
    }
}
