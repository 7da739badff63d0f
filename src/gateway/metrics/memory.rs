//! Metrics of the memory of requests: bytes in flight by kind, their limit, refusals by reason.

use prometheus::proto::{MetricFamily, MetricType};

use troupe_base::{
    budget::{ByteBudget, Kind, Reason},
    metrics::proto,
};

const IN_FLIGHT: (&str, &str) =
    ("troupe_inflight_bytes", "Bytes that requests in flight hold, and memory kept for them");
const LIMIT: (&str, &str) = (
    "troupe_inflight_bytes_limit",
    "Bytes that requests in flight may hold (--max-inflight-bytes)",
);
const REFUSED: (&str, &str) = (
    "troupe_requests_refused_total",
    "Requests refused for want of memory or for their size, and answers of models that had no room",
);

/// At this moment.
pub(super) fn families(budget: &ByteBudget) -> [MetricFamily; 3] {
    let label = |name: &str, value: &str| vec![proto::label(name, value)];
    let kinds = Kind::ALL
        .map(|kind| proto::gauge(label("kind", kind.as_str()), budget.in_use_by(kind) as f64));
    let refused = Reason::ALL.map(|reason| {
        proto::counter(label("reason", reason.as_str()), budget.refusals(reason) as f64)
    });
    [
        proto::family(IN_FLIGHT.0, IN_FLIGHT.1, MetricType::GAUGE, kinds),
        proto::only_gauge(LIMIT.0, LIMIT.1, budget.cap() as f64),
        proto::family(REFUSED.0, REFUSED.1, MetricType::COUNTER, refused),
    ]
}
