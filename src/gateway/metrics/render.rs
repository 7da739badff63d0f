//! All metrics at one moment, as text.

use prometheus::{TextEncoder, proto::MetricType};

use super::{connections, memory, models, regions, steps};
use crate::{connections::Connections, shared_memory::SharedMemory};
use troupe_base::{
    budget::ByteBudget,
    metrics::{Metrics, proto},
};
use troupe_repository::Catalog;

const PINNED_TOTAL: (&str, &str) =
    ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes");
const PINNED_USED: (&str, &str) =
    ("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes");
const MEMORY: (&str, &str) = (
    "troupe_python_shared_memory_bytes",
    "Bytes of shared memory for tensors, in use or kept for reuse, of the server and its workers",
);

/// The page; `shared` are the bytes of shared memory.
pub(super) fn render(
    catalog: &Catalog,
    metrics: &Metrics,
    shared: usize,
    budget: &ByteBudget,
    shared_memory: Option<&SharedMemory>,
    open: Option<&Connections>,
) -> prometheus::Result<String> {
    let mut families = models::families(catalog, metrics.latencies());
    families.extend(steps::families(catalog, metrics));
    families.extend(memory::families(budget));
    families.extend(shared_memory.map(regions::families).into_iter().flatten());
    families.extend(open.map(connections::families).into_iter().flatten());
    // There is no such pool: tensors lie in memory that is shared, not pinned.
    let values = [(PINNED_TOTAL, 0), (PINNED_USED, 0), (MEMORY, shared)];
    families.extend(values.map(|((name, help), value)| {
        proto::family(name, help, MetricType::GAUGE, [proto::gauge(Vec::new(), value as f64)])
    }));
    families.extend(metrics.gather());
    // The encoder refuses families without series.
    families.retain(|it| !it.get_metric().is_empty());
    TextEncoder::new().encode_to_string(&families)
}
