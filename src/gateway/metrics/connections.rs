//! Metrics of connections: how many are open, how many there may be, how many were refused.

use prometheus::proto::MetricFamily;

use crate::connections::Connections;
use troupe_base::metrics::proto;

const OPEN: (&str, &str) = ("troupe_connections", "Connections that are open, over HTTP and gRPC");
const LIMIT: (&str, &str) =
    ("troupe_connections_limit", "Connections that may be open (--max-connections)");
const REFUSED: (&str, &str) =
    ("troupe_connections_refused_total", "Connections closed at once for want of room");

/// At this moment.
pub(super) fn families(connections: &Connections) -> [MetricFamily; 3] {
    [
        proto::only_gauge(OPEN.0, OPEN.1, connections.open() as f64),
        proto::only_gauge(LIMIT.0, LIMIT.1, connections.limits().connections as f64),
        proto::only_counter(REFUSED.0, REFUSED.1, connections.refused() as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::ConnectionLimits;
    use troupe_base::budget::ByteBudget;

    #[test]
    fn open_and_refused_connections_are_counted() {
        let limits = ConnectionLimits { connections: 1, descriptors: 1 << 20, reserved: 64 };
        let connections = Connections::new(limits, &ByteBudget::unlimited());
        let (first, _second) = std::os::unix::net::UnixStream::pair().unwrap();
        let guard = connections.admit(&first);
        assert!(guard.is_some() && connections.admit(&first).is_none());
        let text = prometheus::TextEncoder::new().encode_to_string(&families(&connections));
        let text = text.unwrap();
        for line in [
            "troupe_connections 1",
            "troupe_connections_limit 1",
            "troupe_connections_refused_total 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
}
