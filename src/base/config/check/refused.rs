//! Refuses what a configuration may ask for but the server cannot do yet.

use super::Report;
use crate::config::{BackendTraits, backend};
use troupe_proto::inference::{
    ModelConfig, ModelDynamicBatching, ModelOptimizationPolicy, model_config::SchedulingChoice,
};

/// Every field that asks for something; one that says what happens anyway is fine.
pub(super) fn fields(config: &ModelConfig, report: &mut Report<'_>) {
    let is_ensemble = config.platform == backend::ENSEMBLE;
    let asked = [
        ("runtime", !config.runtime.is_empty()),
        ("cc_model_filenames", !config.cc_model_filenames.is_empty()),
        ("model_operations", asks(config.model_operations.as_ref())),
        ("model_repository_agents", asks(config.model_repository_agents.as_ref())),
        ("response_cache", asks(config.response_cache.as_ref())),
    ];
    refuse("", &asked, report);
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(_)) => {
            refuse("", &[("sequence_batching", true)], report);
        }
        Some(SchedulingChoice::DynamicBatching(batching)) => dynamic_batching(batching, report),
        _ => {}
    }
    if is_ensemble {
        return;
    }
    if let Some(optimization) = &config.optimization {
        hints(optimization, BackendTraits::of(&config.backend).reads_optimization, report);
    }
    for (index, group) in config.instance_group.iter().enumerate() {
        let asked = [
            ("rate_limiter", asks(group.rate_limiter.as_ref())),
            ("profile", !group.profile.is_empty()),
            ("secondary_devices", !group.secondary_devices.is_empty()),
            ("host_policy", !group.host_policy.is_empty()),
        ];
        refuse(&format!("instance_group[{index}]."), &asked, report);
    }
}

fn dynamic_batching(batching: &ModelDynamicBatching, report: &mut Report<'_>) {
    let asked = [
        ("priority_levels", batching.priority_levels > 0),
        ("default_priority_level", batching.default_priority_level > 0),
        ("default_queue_policy", asks(batching.default_queue_policy.as_ref())),
        ("priority_queue_policy", !batching.priority_queue_policy.is_empty()),
    ];
    refuse("dynamic_batching.", &asked, report);
}

/// Memory hints, priority and eager batching change no result, so they are accepted and ignored.
///
/// Graph and accelerators are the backend's matter if it reads them.
fn hints(optimization: &ModelOptimizationPolicy, are_read: bool, report: &mut Report<'_>) {
    let accelerators = optimization.execution_accelerators.as_ref();
    let asked = [
        ("graph", asks(optimization.graph.as_ref()) && !are_read),
        ("cuda", asks(optimization.cuda.as_ref())),
        ("execution_accelerators", asks(accelerators) && !are_read),
    ];
    refuse("optimization.", &asked, report);
}

/// A message that only repeats the defaults asks for nothing.
fn asks<T: Default + PartialEq>(message: Option<&T>) -> bool {
    message.is_some_and(|message| *message != T::default())
}

fn refuse(parent: &str, asked: &[(&str, bool)], report: &mut Report<'_>) {
    for (field, asked) in asked {
        if *asked {
            let path = format!("{parent}{field}");
            let without_index: String =
                path.split(']').map(|part| part.split('[').next().unwrap_or("")).collect();
            report.add(&path, format!("`{without_index}` is not supported yet"));
        }
    }
}
