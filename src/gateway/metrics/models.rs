//! What is counted about each model, under Triton's names.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::{instances, response_cache, sequences};
use troupe_backends::gpus;
use troupe_base::{
    config::InstanceKind,
    metrics::{LatencyMetrics, proto},
    model::Model,
    statistics::{
        BatchTotal, DurationTotal, FailureReason, HistogramSnapshot, LatencySummaries, Quantiles,
        Statistics, Totals,
    },
};
use troupe_repository::Catalog;

const COMPUTE_INPUT_HELP: &str =
    "Cumulative compute input duration in microseconds (does not include cached requests)";
const COMPUTE_INFER_HELP: &str =
    "Cumulative compute inference duration in microseconds (does not include cached requests)";
const COMPUTE_OUTPUT_HELP: &str = "Cumulative inference compute output duration in microseconds \
                                   (does not include cached requests)";

/// A family of series, one for each ready model.
struct CounterFamily {
    name: &'static str,
    help: &'static str,
    /// A sum of microseconds; those can be turned off.
    is_latency: bool,
    value: fn(&Statistics, &Totals) -> u64,
}

const COUNTERS: &[CounterFamily] = &[
    CounterFamily {
        name: "nv_inference_request_success",
        help: "Number of successful inference requests, all batch sizes",
        is_latency: false,
        value: |_, it| it.success.count,
    },
    CounterFamily {
        name: "nv_inference_count",
        help: "Number of inferences performed (does not include cached requests)",
        is_latency: false,
        value: |_, it| it.inference_count,
    },
    CounterFamily {
        name: "nv_inference_exec_count",
        help: "Number of model executions performed (does not include cached requests)",
        is_latency: false,
        value: |_, it| it.execution_count,
    },
    CounterFamily {
        name: "nv_inference_request_duration_us",
        help: "Cumulative inference request duration in microseconds (includes cached requests)",
        is_latency: true,
        value: |_, it| it.success.ns / 1000,
    },
    CounterFamily {
        name: "nv_inference_queue_duration_us",
        help: "Cumulative inference queuing duration in microseconds (includes cached requests)",
        is_latency: true,
        value: |_, it| it.queue.ns / 1000,
    },
    CounterFamily {
        name: "nv_inference_compute_input_duration_us",
        help: COMPUTE_INPUT_HELP,
        is_latency: true,
        value: |_, it| it.compute_input.ns / 1000,
    },
    CounterFamily {
        name: "nv_inference_compute_infer_duration_us",
        help: COMPUTE_INFER_HELP,
        is_latency: true,
        value: |_, it| it.compute_infer.ns / 1000,
    },
    CounterFamily {
        name: "nv_inference_compute_output_duration_us",
        help: COMPUTE_OUTPUT_HELP,
        is_latency: true,
        value: |_, it| it.compute_output.ns / 1000,
    },
    CounterFamily {
        name: "troupe_missing_outputs_total",
        help: "Number of responses without an output that was asked for",
        is_latency: false,
        value: |it, _| it.missing_outputs.load(Relaxed),
    },
    CounterFamily {
        name: "troupe_unexpected_rows_total",
        help: "Number of responses whose rows are not those of their request",
        is_latency: false,
        value: |it, _| it.unexpected_rows.load(Relaxed),
    },
];

const FAILURES: (&str, &str) =
    ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes");

const PENDING: (&str, &str) = (
    "nv_inference_pending_request_count",
    "Instantaneous number of pending requests awaiting execution per-model.",
);

const LOAD: (&str, &str) = ("nv_model_load_duration_secs", "Model load time in seconds");

const RELOAD_FAILED: (&str, &str) = (
    "troupe_model_reload_failed",
    "1 while the files of a model were refused by its last load, and what was loaded before serves on",
);

const FIRST_RESPONSE: (&str, &str) = (
    "nv_inference_first_response_histogram_ms",
    "Duration from request to first response in milliseconds",
);

const BATCHES: (&str, &str) =
    ("troupe_inference_batch_size", "Rows of the executions of a model, warm-up left out");

/// Upper bounds of rows; the sizes themselves are in the statistics extension.
const SIZES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

struct SummaryFamily {
    name: &'static str,
    help: &'static str,
    quantiles: fn(&LatencySummaries) -> &Quantiles,
    total: fn(&Totals) -> DurationTotal,
}

const SUMMARIES: &[SummaryFamily] = &[
    SummaryFamily {
        name: "nv_inference_request_summary_us",
        help: "Summary of inference request duration in microseconds (includes cached requests)",
        quantiles: |it| &it.request,
        total: |it| it.success,
    },
    SummaryFamily {
        name: "nv_inference_queue_summary_us",
        help: "Summary of inference queuing duration in microseconds (includes cached requests)",
        quantiles: |it| &it.queue,
        total: |it| it.queue,
    },
    SummaryFamily {
        name: "nv_inference_compute_input_summary_us",
        help: COMPUTE_INPUT_HELP,
        quantiles: |it| &it.compute_input,
        total: |it| it.compute_input,
    },
    SummaryFamily {
        name: "nv_inference_compute_infer_summary_us",
        help: COMPUTE_INFER_HELP,
        quantiles: |it| &it.compute_infer,
        total: |it| it.compute_infer,
    },
    SummaryFamily {
        name: "nv_inference_compute_output_summary_us",
        help: COMPUTE_OUTPUT_HELP,
        quantiles: |it| &it.compute_output,
        total: |it| it.compute_output,
    },
];

type Labels = Vec<LabelPair>;

/// What a model has counted: its sums are taken once for all families.
struct ModelCounts<'a> {
    stats: &'a Statistics,
    totals: Totals,
}

/// Their families, those without series included.
pub(super) fn families(catalog: &Catalog, latencies: &LatencyMetrics) -> Vec<MetricFamily> {
    let ready = catalog.ready_models().map(|it| (labels(it), &**it)).collect::<Vec<_>>();
    let models = catalog.ready_models();
    let models =
        models.map(|it| (labels(it), ModelCounts { stats: &it.stats, totals: it.stats.totals() }));
    let models: Vec<_> = models.collect();
    let of_each =
        |head: (&str, &str), kind, metric: &dyn Fn(Labels, &ModelCounts<'_>) -> Option<Metric>| {
            let series = models.iter().filter_map(|(labels, it)| metric(labels.clone(), it));
            let (name, help) = head;
            proto::family(name, help, kind, series)
        };
    let mut families = Vec::new();
    for row in COUNTERS.iter().filter(|it| latencies.counters || !it.is_latency) {
        let value = |labels, it: &ModelCounts<'_>| {
            Some(proto::counter(labels, (row.value)(it.stats, &it.totals) as f64))
        };
        families.push(of_each((row.name, row.help), MetricType::COUNTER, &value));
    }
    let failures = models.iter().flat_map(|(labels, it)| failures(labels, it.stats));
    // Behind the successes, the first row.
    families.insert(1, proto::family(FAILURES.0, FAILURES.1, MetricType::COUNTER, failures));
    let gauge = |head, value: fn(&Statistics) -> f64| {
        of_each(head, MetricType::GAUGE, &|labels, it| Some(proto::gauge(labels, value(it.stats))))
    };
    families.push(gauge(PENDING, |it| it.pending() as f64));
    families.push(gauge(LOAD, |it| it.load().as_secs_f64()));
    let reloads = catalog.entries.values().flat_map(|it| it.versions.values()).filter_map(|it| {
        let labels = labels(it.model.as_deref()?);
        Some(proto::gauge(labels, f64::from(u8::from(!it.reason.is_empty()))))
    });
    let (name, help) = RELOAD_FAILED;
    families.push(proto::family(name, help, MetricType::GAUGE, reloads));
    families.push(of_each(FIRST_RESPONSE, MetricType::HISTOGRAM, &|labels, it| {
        Some(proto::histogram(labels, &it.stats.extra.first_response.as_ref()?.snapshot()))
    }));
    families.extend(SUMMARIES.iter().map(|row| {
        let now = std::time::Instant::now();
        of_each((row.name, row.help), MetricType::SUMMARY, &|labels, it| {
            let summaries = it.stats.extra.summaries.as_ref()?;
            let ranks = &latencies.quantiles;
            let values = (row.quantiles)(summaries).at(ranks, now);
            let total = (row.total)(&it.totals);
            let sum = (total.ns / 1000) as f64;
            Some(proto::summary(labels, ranks.iter().copied().zip(values), total.count, sum))
        })
    }));
    let cached = models
        .iter()
        .filter_map(|(labels, it)| Some((labels.clone(), it.stats.extra.cache.as_deref()?)));
    families.extend(instances::families(&ready));
    families.extend(response_cache::families(&cached.collect::<Vec<_>>(), latencies));
    let stateful = models
        .iter()
        .filter_map(|(labels, it)| Some((&**labels, it.stats.extra.sequences.as_deref()?.usage())));
    families.extend(sequences::families(&stateful.collect::<Vec<_>>()));
    families.push(of_each(BATCHES, MetricType::HISTOGRAM, &|labels, it| {
        Some(proto::histogram(labels, &batches(&it.totals.batches)))
    }));
    families
}

fn labels(model: &Model) -> Labels {
    let mut labels = BTreeMap::from([
        ("model".to_owned(), model.name().to_string()),
        ("version".to_owned(), model.version.to_string()),
    ]);
    for (key, value) in &model.config.metric_tags {
        let key = key.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '_' });
        labels.insert(format!("_{}", key.collect::<String>()), value.clone());
    }
    if let Some(uuid) = only_gpu(model).and_then(gpus::uuid) {
        labels.insert("gpu_uuid".to_owned(), uuid.to_owned());
    }
    proto::labels(labels.iter().map(|(name, value)| (&**name, &**value)))
}

/// The GPU that all instances of a model are on: what is counted is counted for all of them.
fn only_gpu(model: &Model) -> Option<i32> {
    let groups = &model.config.instance_groups;
    let gpu = *groups.first()?.gpus.first()?;
    let is_there = |it: &troupe_base::config::InstanceGroup| {
        it.kind == InstanceKind::Gpu && it.gpus.iter().all(|it| *it == gpu)
    };
    groups.iter().all(is_there).then_some(gpu)
}

fn failures(labels: &[LabelPair], stats: &Statistics) -> [Metric; 5] {
    FailureReason::ALL.map(|reason| {
        let mut labels = labels.to_vec();
        labels.push(proto::label("reason", reason.label()));
        proto::counter(labels, stats.failures(reason) as f64)
    })
}

fn batches(sizes: &[(u32, BatchTotal)]) -> HistogramSnapshot {
    let up_to = |most: u32| -> u64 {
        sizes.iter().filter(|(rows, _)| *rows <= most).map(|(_, it)| it.count).sum()
    };
    let rows = sizes.iter().map(|(rows, it)| u64::from(*rows) * it.count).sum::<u64>();
    HistogramSnapshot {
        buckets: SIZES.iter().map(|it| (f64::from(*it), up_to(*it))).collect(),
        count: up_to(u32::MAX),
        sum: rows as f64,
    }
}
