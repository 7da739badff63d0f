//! All metrics at one moment, as text.

use prometheus::TextEncoder;

use super::{connections, memory, models, regions, steps};
use crate::settings::Settings;
use troupe_base::metrics::{Metrics, proto};
use troupe_repository::Catalog;

const PINNED_TOTAL: (&str, &str) =
    ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes");
const PINNED_USED: (&str, &str) =
    ("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes");
const MEMORY: (&str, &str) = (
    "troupe_python_shared_memory_bytes",
    "Bytes of shared memory for tensors, in use or kept for reuse, of the server and its workers",
);

/// The page.
pub(super) fn render(
    catalog: &Catalog,
    metrics: &Metrics,
    settings: &Settings,
) -> prometheus::Result<String> {
    let mut families = models::families(catalog, metrics.latencies());
    families.extend(steps::families(catalog, metrics));
    families.extend(memory::families(&settings.budget));
    families.extend(settings.shared_memory.iter().flat_map(|it| regions::families(it)));
    families.extend(connections::families(&settings.connections));
    // There is no such pool: tensors lie in memory that is shared, not pinned.
    families.extend([PINNED_TOTAL, PINNED_USED].map(|it| proto::only_gauge(it.0, it.1, 0.0)));
    families.push(proto::only_gauge(MEMORY.0, MEMORY.1, settings.segments.bytes() as f64));
    families.extend(metrics.gather());
    // The encoder refuses families without series.
    families.retain(|it| !it.get_metric().is_empty());
    TextEncoder::new().encode_to_string(&families)
}
