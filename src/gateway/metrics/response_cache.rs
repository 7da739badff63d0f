//! Metrics of each model whose answers are kept: hits, misses, and requests that shared an execution.

use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use troupe_base::{
    metrics::{LatencyMetrics, proto},
    statistics::{CacheStatistics, CacheSummaries, DurationTotal, Quantiles},
};

struct CounterRow {
    name: &'static str,
    help: &'static str,
    /// A sum of microseconds; those can be turned off.
    is_latency: bool,
    value: fn(&CacheStatistics) -> u64,
}

const COUNTERS: [CounterRow; 5] = [
    CounterRow {
        name: "nv_cache_num_hits_per_model",
        help: "Number of cache hits per model",
        is_latency: false,
        value: |it| it.hits().count,
    },
    CounterRow {
        name: "nv_cache_num_misses_per_model",
        help: "Number of cache misses per model",
        is_latency: false,
        value: |it| it.misses().count,
    },
    CounterRow {
        name: "nv_cache_hit_duration_per_model",
        help: "Total cache hit duration per model, in microseconds",
        is_latency: true,
        value: |it| it.hits().ns / 1000,
    },
    CounterRow {
        name: "nv_cache_miss_duration_per_model",
        help: "Total cache miss (insert+lookup) duration per model, in microseconds",
        is_latency: true,
        value: |it| it.misses().ns / 1000,
    },
    CounterRow {
        name: "troupe_cache_coalesced_total",
        help: "Number of cache hits that were answered by the execution of an equal request",
        is_latency: false,
        value: |it| it.coalesced_count(),
    },
];

struct CacheSummaryRow {
    name: &'static str,
    help: &'static str,
    quantiles: fn(&CacheSummaries) -> &Quantiles,
    total: fn(&CacheStatistics) -> DurationTotal,
}

const SUMMARIES: [CacheSummaryRow; 2] = [
    CacheSummaryRow {
        name: "nv_cache_hit_summary_us",
        help: "Summary of cache hit counts/durations per model, in microseconds.",
        quantiles: |it| &it.hit,
        total: |it| it.hits(),
    },
    CacheSummaryRow {
        name: "nv_cache_miss_summary_us",
        help: "Summary of cache miss counts/durations per model, in microseconds.",
        quantiles: |it| &it.miss,
        total: |it| it.misses(),
    },
];

/// Their families, those without series included; `models` are those whose answers are kept, with
/// their labels.
pub(super) fn families(
    models: &[(Vec<LabelPair>, &CacheStatistics)],
    latencies: &LatencyMetrics,
) -> Vec<MetricFamily> {
    let shown = COUNTERS.iter().filter(|it| latencies.counters || !it.is_latency);
    let counters = shown.map(|row| {
        let series = models.iter().map(|(labels, stats)| {
            let value = (row.value)(stats) as f64;
            proto::counter(labels.clone(), value)
        });
        proto::family(row.name, row.help, MetricType::COUNTER, series)
    });
    let summaries = SUMMARIES.iter().map(|row| {
        let now = std::time::Instant::now();
        let ranks = &latencies.quantiles;
        let series = models.iter().filter_map(|(labels, stats)| {
            let values = (row.quantiles)(stats.summaries.as_ref()?).at(ranks, now);
            let (total, ranks) = ((row.total)(stats), ranks.iter().copied());
            let sum = (total.ns / 1000) as f64;
            Some(proto::summary(labels.clone(), ranks.zip(values), total.count, sum))
        });
        proto::family(row.name, row.help, MetricType::SUMMARY, series)
    });
    counters.chain(summaries).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn hits_and_misses_are_shown_for_each_model() {
        let stats = CacheStatistics::new(true);
        stats.miss(Duration::from_micros(7));
        stats.hit(Duration::from_micros(3));
        stats.hit(Duration::from_micros(2));
        stats.coalesced();
        let latencies = LatencyMetrics { quantiles: vec![0.5], ..LatencyMetrics::default() };
        let models = [(proto::labels([("model", "m")]), &stats)];
        let families = families(&models, &latencies);
        let text = prometheus::TextEncoder::new().encode_to_string(&families).unwrap();
        for line in [
            "nv_cache_num_hits_per_model{model=\"m\"} 2",
            "nv_cache_num_misses_per_model{model=\"m\"} 1",
            "nv_cache_hit_duration_per_model{model=\"m\"} 5",
            "nv_cache_miss_duration_per_model{model=\"m\"} 7",
            "troupe_cache_coalesced_total{model=\"m\"} 1",
            "nv_cache_hit_summary_us_count{model=\"m\"} 2",
            "nv_cache_miss_summary_us{model=\"m\",quantile=\"0.5\"} 7",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
}
