//! Metrics of ensembles and their steps: durations, failures and requests in flight.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::{
    proto,
    weak_map::{WeakMap, WeakMapEntry},
};
use crate::statistics::{AgeToken, AgeTracker, BucketBounds, ShardedCounters};

/// Upper bounds in seconds: steps take from microseconds to seconds.
const BUCKETS: [f64; 19] = [
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];

static BOUNDS: LazyLock<BucketBounds> = LazyLock::new(|| BucketBounds::new(&BUCKETS, 1e9));

/// Ensemble, the step's position, its model.
type StepKey = (String, usize, String);

/// The series of all ensembles and steps.
#[derive(Default)]
pub(super) struct Steps {
    ensembles: WeakMap<String, EnsembleSeries>,
    steps: WeakMap<StepKey, StepSeries>,
}

/// The series of one step of one ensemble; clones share them, and so do versions of the ensemble.
///
/// The series are shown until the last clone is dropped. Every `started` is followed by one
/// `finished` or `failed`. Nothing is counted when metrics are off.
#[derive(Clone)]
pub struct StepMetrics(Option<Arc<WeakMapEntry<StepKey, StepSeries>>>);

/// The series of a whole ensemble, shared in the same way.
#[derive(Clone)]
pub struct EnsembleMetrics(Option<Arc<WeakMapEntry<String, EnsembleSeries>>>);

struct StepSeries {
    /// The histograms of `STEP_HISTOGRAMS`, one after the other.
    histograms: ShardedCounters,
    /// Requests in flight at the step's model.
    in_flight: AgeTracker,
    /// Requests that wait for room in the step's window.
    waiting: AtomicU64,
    failures: AtomicU64,
}

struct EnsembleSeries {
    /// The histograms of `ENSEMBLE_HISTOGRAMS`, one after the other.
    histograms: ShardedCounters,
}

/// Where the time of a step went, from the moment its inputs were complete to its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepDurations {
    /// Queued for room in the step's window, and in the queue of its model.
    pub queue: Duration,
    /// In an execution of the model: its input, itself, its output.
    pub compute: Duration,
    /// The rest: tensors on their way between steps, and into the model and out of it.
    pub edge: Duration,
}

impl StepDurations {
    /// Divides `whole`, the time of the step: what is neither queue nor compute is edge. Times of
    /// parallel executions, which together may be longer than `whole`, are scaled to fit.
    #[inline]
    pub fn of(whole: Duration, queue: Duration, compute: Duration) -> StepDurations {
        let known = queue + compute;
        if known <= whole {
            return StepDurations { queue, compute, edge: whole - known };
        }
        let queue = whole.mul_f64(queue.as_secs_f64() / known.as_secs_f64()).min(whole);
        StepDurations { queue, compute: whole - queue, edge: Duration::ZERO }
    }

    fn whole(&self) -> Duration {
        self.queue + self.compute + self.edge
    }
}

/// Counts a request as waiting for room in a step's window until it is dropped.
pub struct QueuedGuard(Option<Arc<WeakMapEntry<StepKey, StepSeries>>>);

impl Drop for QueuedGuard {
    fn drop(&mut self) {
        if let Some(series) = &self.0 {
            series.waiting.fetch_sub(1, Relaxed);
        }
    }
}

impl Steps {
    /// The series of step `step`, a position in the ensemble's config, which runs `model`.
    pub(super) fn step(&self, ensemble: &str, step: usize, model: &str) -> StepMetrics {
        let key = (ensemble.to_owned(), step, model.to_owned());
        StepMetrics(Some(self.steps.open(key, StepSeries::default)))
    }

    /// The series of a whole ensemble.
    pub(super) fn ensemble(&self, name: &str) -> EnsembleMetrics {
        EnsembleMetrics(Some(self.ensembles.open(name.to_owned(), EnsembleSeries::default)))
    }

    /// Requests that wait for room in the window of a step.
    pub(super) fn waiting(&self, ensemble: &str, step: usize, model: &str) -> u64 {
        let key = (ensemble.to_owned(), step, model.to_owned());
        self.steps.get(&key).map_or(0, |series| series.waiting.load(Relaxed))
    }
}

impl StepMetrics {
    /// Counts nothing.
    pub(super) fn off() -> StepMetrics {
        StepMetrics(None)
    }

    /// Whether anything is counted.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Counts a request that is handed to the step's model.
    #[inline]
    pub fn started(&self, now: Instant) -> Option<AgeToken> {
        self.0.as_ref().map(|it| it.in_flight.enter(now))
    }

    /// Counts the model's answer; `token` is what `started` returned.
    #[inline]
    pub fn finished(&self, token: Option<AgeToken>, durations: &StepDurations) {
        let (Some(series), Some(token)) = (&self.0, token) else { return };
        series.in_flight.leave(token);
        observe(
            &series.histograms,
            [durations.whole(), durations.queue, durations.compute, durations.edge],
        );
    }

    /// Counts a failure of the model, or a cancellation.
    pub fn failed(&self, token: Option<AgeToken>) {
        let (Some(series), Some(token)) = (&self.0, token) else { return };
        series.in_flight.leave(token);
        series.failures.fetch_add(1, Relaxed);
    }

    /// Counts a request that is ready but finds no room in the step's window.
    pub fn waits(&self) -> QueuedGuard {
        if let Some(series) = &self.0 {
            series.waiting.fetch_add(1, Relaxed);
        }
        QueuedGuard(self.0.clone())
    }
}

impl EnsembleMetrics {
    /// Counts nothing.
    pub(super) fn off() -> EnsembleMetrics {
        EnsembleMetrics(None)
    }

    /// Whether anything is counted.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Counts a request that was answered after `whole`.
    pub fn answered(&self, whole: Duration) {
        if let Some(series) = &self.0 {
            observe(&series.histograms, [whole]);
        }
    }

    /// The same, with the overhead: `busy` is the time that the steps on the critical path spent in
    /// queues and executions.
    #[inline]
    pub fn answered_with(&self, whole: Duration, busy: Duration) {
        if let Some(series) = &self.0 {
            observe(&series.histograms, [whole, whole.saturating_sub(busy)]);
        }
    }
}

/// Counts one duration in each of the first histograms.
fn observe<const COUNT: usize>(histograms: &ShardedCounters, times: [Duration; COUNT]) {
    let (bounds, shard) = (&*BOUNDS, histograms.this_thread());
    for (index, time) in times.into_iter().enumerate() {
        bounds.observe(&shard, index * bounds.length(), time.as_nanos() as u64);
    }
}

fn histograms(count: usize) -> ShardedCounters {
    ShardedCounters::new(count * BOUNDS.length())
}

/// The labels of a step, also for gauges that are read elsewhere.
pub fn step_labels(ensemble: &str, step: usize, model: &str) -> Vec<LabelPair> {
    proto::labels([("ensemble", ensemble), ("model", model), ("step", &*step.to_string())])
}

impl Default for StepSeries {
    fn default() -> StepSeries {
        StepSeries {
            histograms: histograms(STEP_HISTOGRAMS.len()),
            in_flight: AgeTracker::default(),
            waiting: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }
}

impl Default for EnsembleSeries {
    fn default() -> EnsembleSeries {
        EnsembleSeries { histograms: histograms(ENSEMBLE_HISTOGRAMS.len()) }
    }
}

const ENSEMBLE_HISTOGRAMS: [(&str, &str); 2] = [
    (
        "troupe_ensemble_request_seconds",
        "Time from the arrival of an ensemble's request to its last response",
    ),
    (
        "troupe_ensemble_overhead_seconds",
        "Part of the time of an ensemble's request that no queue or execution of the steps it \
         waited for explains; of ensembles whose steps answer once",
    ),
];

const STEP_HISTOGRAMS: [(&str, &str); 4] = [
    (
        "troupe_ensemble_step_duration_seconds",
        "Time from the moment the inputs of an ensemble's step are there to its answer: the sum of \
         queue, compute and edge",
    ),
    (
        "troupe_ensemble_step_queue_seconds",
        "Time requests of an ensemble's step waited for room in the step and in the queue of its \
         model",
    ),
    (
        "troupe_ensemble_step_compute_seconds",
        "Time requests of an ensemble's step were in an execution of its model: input, model and \
         output",
    ),
    (
        "troupe_ensemble_step_edge_seconds",
        "Time requests of an ensemble's step were on their way: tensors from step to step, and \
         into the model and out of it",
    ),
];

/// A histogram family for each of the names.
fn histogram_families(
    names: &[(&str, &str)],
    series: &[(Vec<LabelPair>, Vec<u64>)],
) -> Vec<MetricFamily> {
    let length = BOUNDS.length();
    let family = |(index, (name, help)): (usize, &(&str, &str))| {
        let metric = |(labels, numbers): &(Vec<LabelPair>, Vec<u64>)| {
            let numbers = &numbers[index * length..(index + 1) * length];
            proto::histogram(labels.clone(), &BOUNDS.snapshot(numbers))
        };
        proto::family(name, help, MetricType::HISTOGRAM, series.iter().map(metric))
    };
    names.iter().enumerate().map(family).collect()
}

impl Steps {
    /// All families at this moment, those without series included.
    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        let ensemble = |it: &Arc<WeakMapEntry<String, EnsembleSeries>>| {
            (proto::labels([("ensemble", &*it.key)]), it.histograms.totals())
        };
        let ensembles: Vec<_> = self.ensembles.all().iter().map(ensemble).collect();
        let mut families = histogram_families(&ENSEMBLE_HISTOGRAMS, &ensembles);
        let steps: Vec<_> =
            self.steps.all().into_iter().map(|it| (labels_of(&it.key), it)).collect();
        let numbers = |(labels, it): &(Vec<LabelPair>, Arc<WeakMapEntry<StepKey, StepSeries>>)| {
            (labels.clone(), it.histograms.totals())
        };
        families.extend(histogram_families(
            &STEP_HISTOGRAMS,
            &steps.iter().map(numbers).collect::<Vec<_>>(),
        ));
        let gauge = |name: &str, help: &str, value: &dyn Fn(&StepSeries) -> f64| {
            let series = steps.iter().map(|(labels, it)| proto::gauge(labels.clone(), value(it)));
            proto::family(name, help, MetricType::GAUGE, series)
        };
        families.push(gauge(
            "troupe_ensemble_step_in_flight",
            "Requests handed to the model of an ensemble's step and not answered yet",
            &|it| it.in_flight.count() as f64,
        ));
        families.push(gauge(
            "troupe_ensemble_step_oldest_seconds",
            "Age of the oldest request that was handed to the model of an ensemble's step and is \
             not answered yet",
            &|it| it.in_flight.oldest(now).as_secs_f64(),
        ));
        let failed =
            |(labels, it): &(Vec<LabelPair>, Arc<WeakMapEntry<StepKey, StepSeries>>)| -> Metric {
                proto::counter(labels.clone(), it.failures.load(Relaxed) as f64)
            };
        families.push(proto::family(
            "troupe_ensemble_step_failures_total",
            "Requests the model of an ensemble's step failed",
            MetricType::COUNTER,
            steps.iter().map(failed),
        ));
        families
    }
}

fn labels_of(key: &StepKey) -> Vec<LabelPair> {
    let (ensemble, step, model) = key;
    step_labels(ensemble, *step, model)
}

#[cfg(test)]
mod tests;
