//! Usage of the response cache: hits, misses, and what it holds, at one moment.

use std::time::Duration;

use prometheus::proto::MetricFamily;

use super::proto;

/// What the response cache of a server has done since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheUsage {
    /// Requests that were answered without an execution.
    pub hits: u64,
    /// Requests that were to be executed.
    pub misses: u64,
    /// What looking up took in all.
    pub lookup: Duration,
    /// What keeping answers took in all.
    pub insertion: Duration,
    /// What a cache in memory holds; `None` of others.
    pub held: Option<HeldAnswers>,
}

/// Answers in memory.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct HeldAnswers {
    pub entries: u64,
    pub bytes: u64,
    /// Bytes that there may be.
    pub size: u64,
    pub evictions: u64,
}

struct CacheRow {
    name: &'static str,
    help: &'static str,
    value: fn(&CacheUsage) -> Option<f64>,
}

/// Triton's gauges, in its order.
const ROWS: [CacheRow; 8] = [
    CacheRow {
        name: "nv_cache_num_entries",
        help: "Number of responses stored in response cache",
        value: |it| Some(it.held.as_ref()?.entries as f64),
    },
    CacheRow {
        name: "nv_cache_num_lookups",
        help: "Number of cache lookups in response cache",
        value: |it| Some((it.hits + it.misses) as f64),
    },
    CacheRow {
        name: "nv_cache_num_hits",
        help: "Number of cache hits in response cache",
        value: |it| Some(it.hits as f64),
    },
    CacheRow {
        name: "nv_cache_num_misses",
        help: "Number of cache misses in response cache",
        value: |it| Some(it.misses as f64),
    },
    CacheRow {
        name: "nv_cache_num_evictions",
        help: "Number of cache evictions in response cache",
        value: |it| Some(it.held.as_ref()?.evictions as f64),
    },
    CacheRow {
        name: "nv_cache_lookup_duration",
        help: "Total cache lookup duration (hit and miss), in microseconds",
        value: |it| Some(it.lookup.as_micros() as f64),
    },
    CacheRow {
        name: "nv_cache_insertion_duration",
        help: "Total cache insertion duration, in microseconds",
        value: |it| Some(it.insertion.as_micros() as f64),
    },
    CacheRow {
        name: "nv_cache_util",
        help: "Cache utilization [0.0 - 1.0]",
        value: |it| it.held.as_ref().map(|held| held.bytes as f64 / held.size.max(1) as f64),
    },
];

impl CacheUsage {
    /// Its metric families.
    pub(super) fn gather(&self) -> impl Iterator<Item = MetricFamily> {
        ROWS.iter().filter_map(|row| {
            (row.value)(self).map(|value| proto::only_gauge(row.name, row.help, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn a_cache_is_told_in_tritons_words() {
        let text = |metrics: &Metrics| {
            prometheus::TextEncoder::new().encode_to_string(&metrics.gather()).unwrap()
        };
        let metrics = Metrics::new();
        let held = HeldAnswers { entries: 2, bytes: 256, size: 1024, evictions: 1 };
        let usage = CacheUsage {
            hits: 3,
            misses: 4,
            lookup: Duration::from_micros(5),
            insertion: Duration::from_micros(6),
            held: Some(held),
        };
        let redis = CacheUsage { held: None, ..usage.clone() };
        metrics.show_cache(move || usage.clone());
        let shown = text(&metrics);
        for (name, value) in [
            ("nv_cache_num_entries", "2"),
            ("nv_cache_num_lookups", "7"),
            ("nv_cache_num_hits", "3"),
            ("nv_cache_num_misses", "4"),
            ("nv_cache_num_evictions", "1"),
            ("nv_cache_lookup_duration", "5"),
            ("nv_cache_insertion_duration", "6"),
            ("nv_cache_util", "0.25"),
        ] {
            let row = ROWS.iter().find(|it| it.name == name).unwrap();
            let lines =
                format!("# HELP {name} {}\n# TYPE {name} gauge\n{name} {value}\n", row.help);
            assert!(shown.contains(&lines), "{lines} in {shown}");
        }
        // A Redis says nothing of what it holds.
        metrics.show_cache(move || redis.clone());
        assert!(!text(&metrics).contains("nv_cache_util"), "{}", text(&metrics));
    }
}
