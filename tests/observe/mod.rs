//! What operators see: metrics, logs, traces, the live graph, taps, timings.

pub(crate) mod dashboard;
mod first_page;
pub(crate) mod jaeger;
pub(crate) mod live_graph;
pub(crate) mod logging;
pub(crate) mod metrics;
pub(crate) mod prometheus;
pub(crate) mod tap;
pub(crate) mod timing;
pub(crate) mod trace_calls;
pub(crate) mod trace_settings;
pub(crate) mod traces;
mod workbench;
mod workbench_copies;
mod workbench_forms;
mod workbench_reloads;
