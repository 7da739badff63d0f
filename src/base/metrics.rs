//! Metrics beside the statistics of models: ensembles and their steps, the machine, and custom
//! metrics of Python models, in Prometheus's types.

pub mod activity;
mod copies;
mod custom;
mod machine;
pub mod proto;
mod registry;
mod response_cache;
mod settings;
mod steps;
mod weak_map;

pub use self::{
    copies::CopiedBytes,
    custom::{CustomFamily, CustomSeries, MetricChange, MetricKind, MetricLabels},
    machine::{CpuUsage, GpuUsage, MachineUsage, gpu_families},
    registry::Metrics,
    response_cache::{CacheUsage, HeldAnswers},
    settings::{CountedTraits, LatencyMetrics},
    steps::{EnsembleMetrics, QueuedGuard, StepDurations, StepMetrics, step_labels},
};
