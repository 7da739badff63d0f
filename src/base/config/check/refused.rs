//! Refuses what a configuration may ask for but the server cannot do yet.

use super::report::{ConfigReport, asks};
use crate::config::{backend, backend_traits::BackendTraits};
use troupe_proto::inference::{ModelConfig, ModelOptimizationPolicy};

/// Every field that asks for something; one that says what happens anyway is fine.
pub(super) fn fields(config: &ModelConfig, report: &mut ConfigReport<'_>) {
    let is_ensemble = config.platform == backend::ENSEMBLE;
    let asked = [
        ("runtime", !config.runtime.is_empty()),
        ("cc_model_filenames", !config.cc_model_filenames.is_empty()),
        ("model_operations", asks(config.model_operations.as_ref())),
        ("model_repository_agents", asks(config.model_repository_agents.as_ref())),
    ];
    report.refuse("", &asked);
    if is_ensemble {
        return;
    }
    if let Some(optimization) = &config.optimization {
        hints(optimization, BackendTraits::of(&config.backend).reads_optimization, report);
    }
    for (index, group) in config.instance_group.iter().enumerate() {
        let asked = [
            ("profile", !group.profile.is_empty()),
            ("secondary_devices", !group.secondary_devices.is_empty()),
            ("host_policy", !group.host_policy.is_empty()),
        ];
        report.refuse(&format!("instance_group[{index}]."), &asked);
    }
}

/// Memory hints, priority and eager batching change no result, so they are accepted and ignored.
///
/// Graph and accelerators are the backend's matter if it reads them.
fn hints(optimization: &ModelOptimizationPolicy, are_read: bool, report: &mut ConfigReport<'_>) {
    let accelerators = optimization.execution_accelerators.as_ref();
    let asked = [
        ("graph", asks(optimization.graph.as_ref()) && !are_read),
        ("cuda", asks(optimization.cuda.as_ref())),
        ("execution_accelerators", asks(accelerators) && !are_read),
    ];
    report.refuse("optimization.", &asked);
}
