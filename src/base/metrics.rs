//! What is measured beside the statistics of models: ensembles and their steps, the machine, and what
//! Python models count, in Prometheus's types.

pub mod activity;
mod copies;
mod custom;
mod machine;
pub mod proto;
mod settings;
mod steps;
mod weak_map;

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use prometheus::proto::MetricFamily;

pub use self::{
    copies::CopiedBytes,
    custom::{CustomFamily, CustomSeries, MetricChange, MetricKind, MetricLabels},
    machine::{CpuUsage, GpuUsage, MachineUsage, gpu_families},
    settings::LatencyMetrics,
    steps::{EnsembleMetrics, QueuedGuard, StepDurations, StepMetrics, step_labels},
};
use crate::{
    error::{Error, Result},
    statistics::Statistics,
};

/// Names of the server's own families begin so.
const RESERVED: [&str; 2] = ["nv_", "troupe_"];

/// All series of this server; clones share them.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_off: bool,
    latencies: LatencyMetrics,
    steps: steps::Steps,
    machine: Mutex<MachineUsage>,
    families: custom::CustomFamilies,
}

impl Metrics {
    /// No series yet.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// The same, with latencies of models as they are wanted.
    pub fn with(latencies: LatencyMetrics) -> Metrics {
        Metrics(Arc::new(Shared { latencies, ..Shared::default() }))
    }

    /// Nobody will look: what costs requests something is not counted.
    pub fn off() -> Metrics {
        Metrics(Arc::new(Shared { is_off: true, ..Shared::default() }))
    }

    /// Will anybody look?
    pub fn is_on(&self) -> bool {
        !self.0.is_off
    }

    /// How latencies of models are shown.
    pub fn latencies(&self) -> &LatencyMetrics {
        &self.0.latencies
    }

    /// Counters of one version of a model; the bounds are those of the time to its first response
    /// if its config has some, in milliseconds.
    pub fn statistics(&self, bounds: Option<&[f64]>, is_decoupled: bool) -> Arc<Statistics> {
        Arc::new(Statistics::new(self.0.latencies.extra(bounds, is_decoupled)))
    }

    /// A family of a model's own. An error if the name belongs to somebody else.
    pub fn family(&self, name: &str, help: &str, kind: MetricKind) -> Result<CustomFamily> {
        if let Some(prefix) = RESERVED.iter().find(|it| name.starts_with(**it)) {
            return Err(Error::invalid(format!(
                "'{name}' cannot be a family of a model: names that begin with '{prefix}' are the \
                 server's"
            )));
        }
        self.0.families.open(name, help, kind)
    }

    /// Every series at this moment; each family once, and none without series.
    pub fn gather(&self) -> Vec<MetricFamily> {
        let mut families = self.0.steps.gather();
        families.extend(self.0.machine.lock().gather());
        families.extend(self.0.families.gather());
        families.retain(|it| !it.get_metric().is_empty());
        families
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
