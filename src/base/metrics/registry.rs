//! The registry of a server's metrics: every series that is not part of a model's statistics.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use prometheus::proto::MetricFamily;

use super::{
    custom::{CustomFamilies, CustomFamily, MetricKind},
    machine::MachineUsage,
    response_cache::CacheUsage,
    settings::{CountedTraits, LatencyMetrics},
    steps::{EnsembleMetrics, StepMetrics, Steps},
};
use crate::{
    error::{Error, Result},
    statistics::Statistics,
};

/// Prefixes of the server's own families.
const RESERVED_PREFIXES: [&str; 2] = ["nv_", "troupe_"];

/// All series of one server; clones share them.
#[derive(Clone, Default)]
pub struct Metrics(Arc<RegistryState>);

#[derive(Default)]
struct RegistryState {
    is_off: bool,
    latencies: LatencyMetrics,
    steps: Steps,
    machine: Mutex<MachineUsage>,
    families: CustomFamilies,
    cache: Mutex<Option<ReadCache>>,
}

/// Says what the response cache has done, and what it holds.
type ReadCache = Box<dyn Fn() -> CacheUsage + Send>;

impl Metrics {
    /// A registry without series.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// A registry that shows latencies of models as configured.
    pub fn with(latencies: LatencyMetrics) -> Metrics {
        Metrics(Arc::new(RegistryState { latencies, ..RegistryState::default() }))
    }

    /// A registry that nobody reads: what would cost requests time is not counted.
    pub fn off() -> Metrics {
        Metrics(Arc::new(RegistryState { is_off: true, ..RegistryState::default() }))
    }

    /// Whether anybody may read the metrics.
    pub fn is_on(&self) -> bool {
        !self.0.is_off
    }

    /// How latencies of models are shown.
    pub fn latencies(&self) -> &LatencyMetrics {
        &self.0.latencies
    }

    /// New counters of one version of a model. `bounds` are the buckets of the time to its first
    /// response in milliseconds, if its config has some.
    pub fn statistics(&self, bounds: Option<&[f64]>, traits: CountedTraits) -> Arc<Statistics> {
        Arc::new(Statistics::new(self.0.latencies.extra(bounds, traits)))
    }

    /// Opens a custom family of a model. An error if the name is the server's or of another kind.
    pub fn family(&self, name: &str, help: &str, kind: MetricKind) -> Result<CustomFamily> {
        if let Some(prefix) = RESERVED_PREFIXES.iter().find(|it| name.starts_with(**it)) {
            return Err(Error::invalid(format!(
                "'{name}' cannot be a family of a model: names that begin with '{prefix}' are the \
                 server's"
            )));
        }
        self.0.families.open(name, help, kind)
    }

    /// Opens a family of the server's own; the name is not checked for reserved prefixes.
    pub(super) fn server_family(
        &self,
        name: &str,
        help: &str,
        kind: MetricKind,
    ) -> Result<CustomFamily> {
        self.0.families.open(name, help, kind)
    }

    /// Sets the machine's usage, as it was measured last.
    pub fn set_machine(&self, machine: MachineUsage) {
        *self.0.machine.lock() = machine;
    }

    /// Shows the response cache from now on, as `usage` says each time.
    pub fn show_cache(&self, usage: impl Fn() -> CacheUsage + Send + 'static) {
        *self.0.cache.lock() = Some(Box::new(usage));
    }

    /// The series of step `step`, a position in the ensemble's config, which runs `model`.
    pub fn step(&self, ensemble: &str, step: usize, model: &str) -> StepMetrics {
        if self.is_on() { self.0.steps.step(ensemble, step, model) } else { StepMetrics::off() }
    }

    /// The series of a whole ensemble.
    pub fn ensemble(&self, name: &str) -> EnsembleMetrics {
        if self.is_on() { self.0.steps.ensemble(name) } else { EnsembleMetrics::off() }
    }

    /// Requests that wait for room in the window of a step.
    pub fn waiting(&self, ensemble: &str, step: usize, model: &str) -> u64 {
        self.0.steps.waiting(ensemble, step, model)
    }

    /// All families with their series at this moment; families without series are left out.
    pub fn gather(&self) -> Vec<MetricFamily> {
        let mut families = self.0.steps.gather();
        families.extend(self.0.machine.lock().gather());
        families.extend(self.0.families.gather());
        if let Some(usage) = &*self.0.cache.lock() {
            families.extend(usage().gather());
        }
        families.retain(|it| !it.get_metric().is_empty());
        families
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
