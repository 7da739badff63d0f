//! Checks how requests are scheduled: dynamic batching, and what is refused of it and of others.

use std::time::Duration;

use super::report::{ConfigReport, asks};
use crate::config::types::{Batching, DynamicBatching};
use troupe_proto::inference::{ModelConfig, ModelDynamicBatching, model_config::SchedulingChoice};

/// Which requests may be executed together.
pub(super) fn batching(config: &ModelConfig, report: &mut ConfigReport<'_>) -> Batching {
    let Some(SchedulingChoice::DynamicBatching(dynamic)) = &config.scheduling_choice else {
        return Batching::Direct;
    };
    let path = "dynamic_batching.preferred_batch_size";
    let m = report.model;
    let mut preferred = Vec::new();
    for size in &dynamic.preferred_batch_size {
        match u32::try_from(*size) {
            Err(_) | Ok(0) => report
                .add(path, format!("dynamic batching preferred size must be positive for {m}")),
            Ok(_) if *size > config.max_batch_size => report.add(
                path,
                format!("dynamic batching preferred size must be <= max batch size for {m}"),
            ),
            Ok(size) => preferred.push(size),
        }
    }
    let policy = config.model_transaction_policy.as_ref();
    if dynamic.preserve_ordering && policy.is_some_and(|policy| policy.decoupled) {
        let text = "a decoupled model answers when it likes, so its answers have no order to keep";
        report.add("dynamic_batching.preserve_ordering", format!("{text} for {m}"));
    }
    Batching::Dynamic(DynamicBatching {
        preferred,
        max_queue_delay: Duration::from_micros(dynamic.max_queue_delay_microseconds),
        preserve_ordering: dynamic.preserve_ordering,
    })
}

/// Refuses what the schedulers cannot do yet.
pub(super) fn refused(config: &ModelConfig, report: &mut ConfigReport<'_>) {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(_)) => {
            report.refuse("", &[("sequence_batching", true)]);
        }
        Some(SchedulingChoice::DynamicBatching(batching)) => refuse_dynamic(batching, report),
        _ => {}
    }
}

fn refuse_dynamic(batching: &ModelDynamicBatching, report: &mut ConfigReport<'_>) {
    let asked = [
        ("priority_levels", batching.priority_levels > 0),
        ("default_priority_level", batching.default_priority_level > 0),
        ("default_queue_policy", asks(batching.default_queue_policy.as_ref())),
        ("priority_queue_policy", !batching.priority_queue_policy.is_empty()),
    ];
    report.refuse("dynamic_batching.", &asked);
}
