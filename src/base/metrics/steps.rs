//! Series of ensembles and of their steps: where the time of their requests goes.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::{
    Metrics, proto,
    weak_map::{WeakMap, WeakMapEntry},
};
use crate::statistics::{AgeToken, AgeTracker, BucketBounds, ShardedCounters};

/// Upper bounds in seconds: steps take from microseconds to seconds.
const BUCKETS: [f64; 19] = [
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];

static BOUNDS: LazyLock<BucketBounds> = LazyLock::new(|| BucketBounds::new(&BUCKETS, 1e9));

/// Ensemble, position, model.
type Key = (String, usize, String);

/// All of them.
#[derive(Default)]
pub(super) struct Steps {
    ensembles: WeakMap<String, EnsembleSeries>,
    steps: WeakMap<Key, StepSeries>,
}

/// Series of one step of one ensemble; clones share them, and so do versions of the ensemble.
///
/// The series end with the last clone. Every `started` is followed by one `finished` or `failed`.
/// Nothing is counted when metrics are off.
#[derive(Clone)]
pub struct StepMetrics(Option<Arc<WeakMapEntry<Key, StepSeries>>>);

/// Series of a whole ensemble, shared in the same way.
#[derive(Clone)]
pub struct EnsembleMetrics(Option<Arc<WeakMapEntry<String, EnsembleSeries>>>);

struct StepSeries {
    /// One after the other, as `STEP_HISTOGRAMS` has them.
    histograms: ShardedCounters,
    /// Requests at the step's model.
    in_flight: AgeTracker,
    /// Requests that wait for room in the step's window.
    waiting: AtomicU64,
    failures: AtomicU64,
}

struct EnsembleSeries {
    /// One after the other, as `ENSEMBLE_HISTOGRAMS` has them.
    histograms: ShardedCounters,
}

/// Where the time of a step went, from the moment its inputs were there to its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepDurations {
    /// QueuedGuard for room in the step's window, and in the queue of its model.
    pub queue: Duration,
    /// In an execution of the model: its input, itself, its output.
    pub compute: Duration,
    /// All the rest: tensors on their way between steps, and into the model and out of it.
    pub edge: Duration,
}

impl StepDurations {
    /// What is neither queue nor compute of `whole`, the time of the step, is its edge. Times of
    /// executions beside each other, which are longer together, are scaled to fit.
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

/// A request waits for room in a step's window until this is dropped.
pub struct QueuedGuard(Option<Arc<WeakMapEntry<Key, StepSeries>>>);

impl Drop for QueuedGuard {
    fn drop(&mut self) {
        if let Some(series) = &self.0 {
            series.waiting.fetch_sub(1, Relaxed);
        }
    }
}

impl Metrics {
    /// The series of step `step`, a position in the ensemble's config, which runs `model`.
    pub fn step(&self, ensemble: &str, step: usize, model: &str) -> StepMetrics {
        let key = (ensemble.to_owned(), step, model.to_owned());
        StepMetrics(self.is_on().then(|| self.0.steps.steps.open(key, StepSeries::default)))
    }

    /// The series of a whole ensemble.
    pub fn ensemble(&self, name: &str) -> EnsembleMetrics {
        let series = || self.0.steps.ensembles.open(name.to_owned(), EnsembleSeries::default);
        EnsembleMetrics(self.is_on().then(series))
    }

    /// Requests that wait for room in the window of a step.
    pub fn waiting(&self, ensemble: &str, step: usize, model: &str) -> u64 {
        let key = (ensemble.to_owned(), step, model.to_owned());
        self.0.steps.steps.get(&key).map_or(0, |it| it.waiting.load(Relaxed))
    }
}

impl StepMetrics {
    /// Does anybody look?
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A request was handed to the step's model.
    pub fn started(&self, now: Instant) -> Option<AgeToken> {
        self.0.as_ref().map(|it| it.in_flight.enter(now))
    }

    /// The model answered; `came` is what `started` said.
    pub fn finished(&self, came: Option<AgeToken>, spent: &StepDurations) {
        let (Some(series), Some(came)) = (&self.0, came) else { return };
        series.in_flight.leave(came);
        observe(&series.histograms, [spent.whole(), spent.queue, spent.compute, spent.edge]);
    }

    /// The model failed, or was told to stop.
    pub fn failed(&self, came: Option<AgeToken>) {
        let (Some(series), Some(came)) = (&self.0, came) else { return };
        series.in_flight.leave(came);
        series.failures.fetch_add(1, Relaxed);
    }

    /// A request that is ready finds no room in the step's window.
    pub fn waits(&self) -> QueuedGuard {
        if let Some(series) = &self.0 {
            series.waiting.fetch_add(1, Relaxed);
        }
        QueuedGuard(self.0.clone())
    }
}

impl EnsembleMetrics {
    /// Does anybody look?
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A request was answered after `whole`.
    pub fn answered(&self, whole: Duration) {
        if let Some(series) = &self.0 {
            observe(&series.histograms, [whole]);
        }
    }

    /// The same where it is known how long the steps took that nothing could go on without:
    /// `busy` is their time in queues and executions.
    pub fn answered_with(&self, whole: Duration, busy: Duration) {
        if let Some(series) = &self.0 {
            observe(&series.histograms, [whole, whole.saturating_sub(busy)]);
        }
    }
}

/// Counts a time in each of the first histograms.
fn observe<const COUNT: usize>(histograms: &ShardedCounters, times: [Duration; COUNT]) {
    let (bounds, mine) = (&*BOUNDS, histograms.this_thread());
    for (index, time) in times.into_iter().enumerate() {
        bounds.observe(&mine, index * bounds.length(), time.as_nanos() as u64);
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

/// A family for each of the names.
fn shown(names: &[(&str, &str)], series: &[(Vec<LabelPair>, Vec<u64>)]) -> Vec<MetricFamily> {
    let length = BOUNDS.length();
    let one = |(index, name): (usize, &(&str, &str))| {
        let metric = |(labels, numbers): &(Vec<LabelPair>, Vec<u64>)| {
            let numbers = &numbers[index * length..(index + 1) * length];
            proto::histogram(labels.clone(), &BOUNDS.snapshot(numbers))
        };
        proto::family(*name, MetricType::HISTOGRAM, series.iter().map(metric))
    };
    names.iter().enumerate().map(one).collect()
}

impl Steps {
    /// Their families at this moment, those without series included.
    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        let ensemble = |it: &Arc<WeakMapEntry<String, EnsembleSeries>>| {
            (proto::labels([("ensemble", &*it.key)]), it.histograms.totals())
        };
        let ensembles: Vec<_> = self.ensembles.all().iter().map(ensemble).collect();
        let mut families = shown(&ENSEMBLE_HISTOGRAMS, &ensembles);
        let steps: Vec<_> =
            self.steps.all().into_iter().map(|it| (labels_of(&it.key), it)).collect();
        let numbers = |(labels, it): &(Vec<LabelPair>, Arc<WeakMapEntry<Key, StepSeries>>)| {
            (labels.clone(), it.histograms.totals())
        };
        families.extend(shown(&STEP_HISTOGRAMS, &steps.iter().map(numbers).collect::<Vec<_>>()));
        let gauge = |name, value: &dyn Fn(&StepSeries) -> f64| {
            let series = steps.iter().map(|(labels, it)| proto::gauge(labels.clone(), value(it)));
            proto::family(name, MetricType::GAUGE, series)
        };
        let in_flight = (
            "troupe_ensemble_step_in_flight",
            "Requests handed to the model of an ensemble's step and not answered yet",
        );
        families.push(gauge(in_flight, &|it| it.in_flight.count() as f64));
        let oldest = (
            "troupe_ensemble_step_oldest_seconds",
            "Age of the oldest request that was handed to the model of an ensemble's step and is \
             not answered yet",
        );
        families.push(gauge(oldest, &|it| it.in_flight.oldest(now).as_secs_f64()));
        let failures = (
            "troupe_ensemble_step_failures_total",
            "Requests the model of an ensemble's step failed",
        );
        let failed =
            |(labels, it): &(Vec<LabelPair>, Arc<WeakMapEntry<Key, StepSeries>>)| -> Metric {
                proto::counter(labels.clone(), it.failures.load(Relaxed) as f64)
            };
        families.push(proto::family(failures, MetricType::COUNTER, steps.iter().map(failed)));
        families
    }
}

fn labels_of((ensemble, step, model): &Key) -> Vec<LabelPair> {
    step_labels(ensemble, *step, model)
}

#[cfg(test)]
mod tests;
