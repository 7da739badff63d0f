//! Metrics of clients' shared memory: regions that are registered, and bytes copied from and to them.

use prometheus::proto::{MetricFamily, MetricType};

use crate::shared_memory::SharedMemory;
use troupe_base::metrics::proto;

const REGIONS: (&str, &str) =
    ("troupe_client_shm_regions", "Regions of shared memory that clients have registered");
const COPIED: (&str, &str) = (
    "troupe_client_shm_copied_bytes_total",
    "Bytes of tensors copied out of regions of clients, and into them",
);

/// At this moment.
pub(super) fn families(shared_memory: &SharedMemory) -> [MetricFamily; 2] {
    let [read, written] = shared_memory.copied_bytes();
    let copied = [("read", read), ("written", written)].map(|(direction, bytes)| {
        proto::counter(vec![proto::label("direction", direction)], bytes as f64)
    });
    [
        proto::only_gauge(REGIONS.0, REGIONS.1, shared_memory.len() as f64),
        proto::family(COPIED.0, COPIED.1, MetricType::COUNTER, copied),
    ]
}
