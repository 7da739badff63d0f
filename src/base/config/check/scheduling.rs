//! Checks how requests are scheduled: dynamic batching, its priorities and queue policies, and what
//! is refused of others.

use std::{collections::BTreeMap, time::Duration};

use super::{report::ConfigReport, sequence};
use crate::config::{
    priorities::{PriorityLevels, QueuePolicy},
    problem::Problem,
    types::{self, Batching, DynamicBatching},
};
use troupe_proto::inference::{
    ModelConfig, ModelDynamicBatching, ModelQueuePolicy, model_config::SchedulingChoice,
    model_queue_policy::TimeoutAction,
};

const PATH: &str = "dynamic_batching";

/// Which requests may be executed together.
pub(super) fn batching(config: &ModelConfig, report: &mut ConfigReport<'_>) -> Batching {
    let dynamic = match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(dynamic)) => dynamic,
        Some(SchedulingChoice::SequenceBatching(written)) => {
            return Batching::Sequence(sequence::batching(config, written, report));
        }
        _ => return Batching::Direct,
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
        queues: priorities(dynamic, report),
    })
}

/// The levels and the policies of their queues, which must go with each other.
fn priorities(dynamic: &ModelDynamicBatching, report: &mut ConfigReport<'_>) -> PriorityLevels {
    let (m, levels) = (report.model, dynamic.priority_levels);
    let is_level = |level: u64| (1..=levels).contains(&level);
    if levels != 0 && !is_level(dynamic.default_priority_level) {
        let text = format!("default priority level must be in range [1, {levels}] for {m}");
        let got = dynamic.default_priority_level;
        report.add(&format!("{PATH}.default_priority_level"), format!("{text}: it is {got}"));
    }
    let mut policies = BTreeMap::new();
    for (level, policy) in dynamic.priority_queue_policy.iter().filter(|_| levels != 0) {
        if !is_level(*level) {
            let text = "priority queue policy must have priority level in range";
            let path = format!("{PATH}.priority_queue_policy");
            report.add(&path, format!("{text} [1, {levels}] for {m}: it has one for {level}"));
        }
        policies.insert(*level, queue_policy(policy));
    }
    let default_policy = dynamic.default_queue_policy.as_ref().map(queue_policy);
    let default_policy = default_policy.unwrap_or_default();
    if dynamic.preserve_ordering {
        if levels > 1 {
            let text = "Only one priority level is allowed when 'preserve_ordering' is true";
            report.add(&format!("{PATH}.priority_levels"), format!("{text} for {m}"));
        }
        let mut all = policies.values().chain([&default_policy]);
        if all.any(|policy| policy.delays && !policy.timeout.is_zero()) {
            let text = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' \
                        is true";
            report.add(&format!("{PATH}.preserve_ordering"), format!("{text} for {m}"));
        }
    }
    let default_level = if levels == 0 { 0 } else { dynamic.default_priority_level };
    PriorityLevels { levels, default_level, default_policy, policies }
}

fn queue_policy(policy: &ModelQueuePolicy) -> QueuePolicy {
    QueuePolicy {
        delays: policy.timeout_action() == TimeoutAction::Delay,
        timeout: Duration::from_micros(policy.default_timeout_microseconds),
        allows_override: policy.allow_timeout_override,
        max_size: policy.max_queue_size,
    }
}

/// What a config asks of its queues that has no effect, as on Triton.
pub fn warnings(config: &types::ModelConfig) -> Vec<Problem> {
    let mut warnings = Vec::new();
    let Some(SchedulingChoice::DynamicBatching(dynamic)) = &config.proto.scheduling_choice else {
        return warnings;
    };
    let mut warn = |field: &str, text: &str| {
        let text = format!("`{field}` of '{}' has no effect: {text}", config.name);
        warnings.push(config.source_map.problem(&format!("{PATH}.{field}"), text));
    };
    if dynamic.priority_levels == 0 {
        let text = "`priority_levels` is 0, so all requests wait in one queue";
        if dynamic.default_priority_level != 0 {
            warn("default_priority_level", text);
        }
        if !dynamic.priority_queue_policy.is_empty() {
            warn("priority_queue_policy", text);
        }
    }
    let has_no_effect = |policy: &ModelQueuePolicy| {
        policy.allow_timeout_override && policy.default_timeout_microseconds == 0
    };
    let text = "it allows an override of `default_timeout_microseconds`, which is 0: requests wait \
                for ever whatever `timeout` they name. Give it the longest time that one may wait";
    if dynamic.default_queue_policy.iter().any(has_no_effect) {
        warn("default_queue_policy", text);
    }
    if dynamic.priority_queue_policy.values().any(has_no_effect) {
        warn("priority_queue_policy", text);
    }
    warnings
}
