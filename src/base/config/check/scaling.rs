//! Checks what an instance group says of autoscaling: how many instances there may be, and when they
//! come and go.

use std::time::Duration;

use super::report::ConfigReport;
use crate::config::types::InstanceScaling;
use troupe_proto::inference::{
    ModelConfig, ModelInstanceGroup, model_config::SchedulingChoice, model_instance_group::Scaling,
};

/// Where the config does not say.
const TARGET_QUEUE_MICROSECONDS: u64 = 50_000;
const UP_AFTER_MILLISECONDS: u32 = 2_000;
const DOWN_AFTER_MILLISECONDS: u32 = 60_000;

/// Of the group with this index, which may have so many instances; `None` if it has as many as it says.
pub(super) fn of(
    config: &ModelConfig,
    index: usize,
    max_instances: u64,
    report: &mut ConfigReport<'_>,
) -> Option<InstanceScaling> {
    let group = &config.instance_group[index];
    let written = group.scaling.as_ref()?;
    let path = format!("instance_group[{index}].scaling");
    let (name, model) = (&group.name, report.model);
    if let Some(why) = fixed(config, group) {
        let text = format!(
            "instance group {name} of model {model} can not have 'scaling': {why}. Write as many \
             as it needs into 'count'"
        );
        report.add(&path, text);
    }
    let min = written.min_count.unwrap_or(1);
    for (field, text) in problems(group, written, min, max_instances) {
        let text = format!("instance group {name} of model {model} has {text}");
        report.add(&format!("{path}.{field}"), text);
    }
    let milliseconds = |it: u32| Duration::from_millis(it.into());
    let target = written.target_queue_microseconds.unwrap_or(TARGET_QUEUE_MICROSECONDS);
    let up = written.scale_up_after_milliseconds.unwrap_or(UP_AFTER_MILLISECONDS);
    let down = written.scale_down_after_milliseconds.unwrap_or(DOWN_AFTER_MILLISECONDS);
    Some(InstanceScaling {
        min,
        max: written.max_count,
        target_queue: Duration::from_micros(target),
        up_after: milliseconds(up),
        down_after: milliseconds(down),
    })
}

/// Why the number of instances stays what it is.
fn fixed(config: &ModelConfig, group: &ModelInstanceGroup) -> Option<&'static str> {
    let keeps_order = match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(_)) => {
            return Some("with 'sequence_batching' each instance knows something of its own");
        }
        Some(SchedulingChoice::DynamicBatching(dynamic)) => dynamic.preserve_ordering,
        _ => false,
    };
    let working = config.instance_group.iter().filter(|it| !it.passive).count();
    match () {
        () if keeps_order => {
            Some("with 'preserve_ordering' answers are kept in order for as many as there are")
        }
        () if group.passive => Some("a passive group is given no requests"),
        () if working > 1 => Some("the model has another group, and only one can follow its queue"),
        () => None,
    }
}

/// The fields that are wrong, and what they say.
fn problems(
    group: &ModelInstanceGroup,
    written: &Scaling,
    min: u32,
    max_instances: u64,
) -> Vec<(&'static str, String)> {
    let max = written.max_count;
    let devices = group.gpus.len().max(1) as u64;
    let mut problems = Vec::new();
    if min == 0 {
        problems.push(("min_count", "min_count 0, expected a number from 1 on".to_owned()));
    }
    if max < min.max(1) {
        let text = format!("max_count {max}, expected a number from min_count {min} on");
        problems.push(("max_count", text));
    } else if max_instances < u64::from(max) * devices {
        let text = format!(
            "max_count {max}, expected at most {max_instances} instances of a model in all"
        );
        problems.push(("max_count", text));
    } else if u32::try_from(group.count).is_ok_and(|it| it < min || max < it) {
        let text =
            format!("count {}, expected a number from min_count {min} to {max}", group.count);
        problems.push(("min_count", text));
    }
    let zero = |field: &'static str, value: Option<u64>| {
        (value == Some(0)).then(|| (field, format!("{field} 0, expected a number from 1 on")))
    };
    problems.extend(zero("target_queue_microseconds", written.target_queue_microseconds));
    for (field, value) in [
        ("scale_up_after_milliseconds", written.scale_up_after_milliseconds),
        ("scale_down_after_milliseconds", written.scale_down_after_milliseconds),
    ] {
        problems.extend(zero(field, value.map(u64::from)));
    }
    problems
}
