//! What is measured beside the statistics of models: the steps of ensembles, and what Python models
//! count, in Prometheus's types.

mod copies;
mod families;
pub mod live;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry,
    core::Collector,
    proto::{LabelPair, MetricFamily},
};

pub use self::{
    copies::CopiedBytes,
    families::{Change, Family, Kind, Labels, Series as FamilySeries},
};
use crate::error::{Error, Result};

/// Names of the server's own families begin so.
const RESERVED: [&str; 2] = ["nv_", "troupe_"];

/// Upper bounds in seconds: steps take from microseconds to seconds.
const BUCKETS: [f64; 19] = [
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];

/// All series of this server; clones share them.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Shared>);

/// Series of one step of one ensemble; clones share them.
///
/// The series end with the last clone. Every `started` is followed by one `finished` or `failed`.
#[derive(Clone)]
pub struct StepMetrics {
    series: Series,
    /// Held for its drop.
    _user: Arc<User>,
}

/// Ensemble, position, model.
type Key = (String, usize, String);

#[derive(Default)]
struct Shared {
    registry: Registry,
    /// Invariant: an entry is registered, and is removed by its last user under this lock.
    steps: Mutex<HashMap<Key, Entry>>,
    families: families::Families,
}

struct Entry {
    series: Series,
    /// A reloaded ensemble counts on beside the one it replaces.
    users: usize,
}

#[derive(Clone)]
struct Series {
    queue: Histogram,
    duration: Histogram,
    in_flight: IntGauge,
    failures: IntCounter,
}

struct User {
    key: Key,
    of: Weak<Shared>,
}

impl Metrics {
    /// No series yet.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// The series of step `step`, a position in the ensemble's config, which runs `model`.
    pub fn step(&self, ensemble: &str, step: usize, model: &str) -> StepMetrics {
        let key = (ensemble.to_owned(), step, model.to_owned());
        let mut steps = self.0.steps.lock();
        let entry = steps.entry(key.clone()).or_insert_with(|| {
            let series = Series::new(&key);
            series.for_each(|it| self.0.registry.register(it).expect("the key is new"));
            Entry { series, users: 0 }
        });
        entry.users += 1;
        let user = User { key, of: Arc::downgrade(&self.0) };
        StepMetrics { series: entry.series.clone(), _user: Arc::new(user) }
    }

    /// A family of a model's own. An error if the name belongs to somebody else.
    pub fn family(&self, name: &str, help: &str, kind: Kind) -> Result<Family> {
        if let Some(prefix) = RESERVED.iter().find(|it| name.starts_with(**it)) {
            return Err(Error::invalid(format!(
                "'{name}' cannot be a family of a model: names that begin with '{prefix}' are the \
                 server's"
            )));
        }
        self.0.families.open(name, help, kind)
    }

    /// Every series at this moment; each family once.
    pub fn gather(&self) -> Vec<MetricFamily> {
        let mut families = self.0.registry.gather();
        families.extend(self.0.families.gather());
        families
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl StepMetrics {
    /// A request was handed to the step's model.
    pub fn started(&self) {
        self.series.in_flight.inc();
    }

    /// The model answered `total` after it was asked, `queue` of it spent waiting.
    pub fn finished(&self, queue: Duration, total: Duration) {
        self.series.in_flight.dec();
        self.series.queue.observe(queue.as_secs_f64());
        self.series.duration.observe(total.as_secs_f64());
    }

    /// The model failed, or was told to stop.
    pub fn failed(&self) {
        self.series.in_flight.dec();
        self.series.failures.inc();
    }
}

/// The labels of a step, also for gauges that are read elsewhere.
pub fn step_labels(ensemble: &str, step: usize, model: &str) -> [(&'static str, String); 3] {
    [("ensemble", ensemble.to_owned()), ("step", step.to_string()), ("model", model.to_owned())]
}

/// A label as a family holds it.
pub fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

impl Series {
    fn new((ensemble, step, model): &Key) -> Series {
        const VALID: &str = "names and buckets are constants, and valid";
        let opts = |name: &str, help: &str| {
            let labels = step_labels(ensemble, *step, model);
            Opts::new(name, help).const_labels(labels.map(|(k, v)| (k.to_owned(), v)).into())
        };
        let histogram = |name: &str, help: &str| {
            let common_opts = opts(name, help);
            let opts = HistogramOpts { common_opts, buckets: BUCKETS.to_vec() };
            Histogram::with_opts(opts).expect(VALID)
        };
        Series {
            queue: histogram(
                "troupe_ensemble_step_queue_seconds",
                "Time requests of an ensemble's step waited in the queue of its model",
            ),
            duration: histogram(
                "troupe_ensemble_step_duration_seconds",
                "Time from asking the model of an ensemble's step to its answer",
            ),
            in_flight: IntGauge::with_opts(opts(
                "troupe_ensemble_step_in_flight",
                "Requests handed to the model of an ensemble's step and not answered yet",
            ))
            .expect(VALID),
            failures: IntCounter::with_opts(opts(
                "troupe_ensemble_step_failures",
                "Requests the model of an ensemble's step failed",
            ))
            .expect(VALID),
        }
    }

    fn for_each(&self, act: impl Fn(Box<dyn Collector>)) {
        act(Box::new(self.queue.clone()));
        act(Box::new(self.duration.clone()));
        act(Box::new(self.in_flight.clone()));
        act(Box::new(self.failures.clone()));
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let Some(shared) = self.of.upgrade() else { return };
        let mut steps = shared.steps.lock();
        let Some(entry) = steps.get_mut(&self.key) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            entry.series.for_each(|it| shared.registry.unregister(it).unwrap_or_default());
            steps.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        prometheus::TextEncoder::new().encode_to_string(&metrics.gather()).unwrap()
    }

    #[test]
    fn a_step_counts_what_it_did() {
        let metrics = Metrics::new();
        let step = metrics.step("e", 1, "m");
        step.started();
        step.started();
        step.started();
        step.finished(Duration::from_micros(20), Duration::from_micros(200));
        step.failed();
        let text = text(&metrics);
        let labels = r#"{ensemble="e",model="m",step="1"}"#;
        for line in [
            format!("troupe_ensemble_step_in_flight{labels} 1"),
            format!("troupe_ensemble_step_failures{labels} 1"),
            format!("troupe_ensemble_step_queue_seconds_count{labels} 1"),
            format!("troupe_ensemble_step_duration_seconds_sum{labels} 0.0002"),
            r#"troupe_ensemble_step_queue_seconds_bucket{ensemble="e",model="m",step="1",le="0.000025"} 1"#
                .to_owned(),
        ] {
            assert!(text.lines().any(|it| it == line), "no `{line}` in\n{text}");
        }
    }

    #[test]
    fn a_reload_counts_on_and_an_unload_takes_the_series_away() {
        let metrics = Metrics::new();
        let old = metrics.step("e", 0, "m");
        let new = metrics.step("e", 0, "m");
        old.failed();
        drop(old);
        new.clone().failed();
        assert!(text(&metrics).contains(r#"failures{ensemble="e",model="m",step="0"} 2"#));
        drop(new);
        assert_eq!(text(&metrics), "");
        drop(metrics.step("e", 0, "m"));
    }

    #[test]
    fn names_that_only_concatenate_alike_are_different_series() {
        let metrics = Metrics::new();
        let a = metrics.step("a", 11, "m");
        let _b = metrics.step("a1", 1, "m");
        a.failed();
        let text = text(&metrics);
        assert!(text.contains(r#"failures{ensemble="a",model="m",step="11"} 1"#), "{text}");
        assert!(text.contains(r#"failures{ensemble="a1",model="m",step="1"} 0"#), "{text}");
    }
}
