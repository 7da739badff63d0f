//! Checks the instance groups of a model.

use super::{Options, Report};
use crate::config::{InstanceGroup, InstanceKind};
use crate::proto::inference::{ModelConfig, ModelInstanceGroup, model_instance_group::Kind};

/// The checked groups; `KIND_AUTO` has been resolved before.
pub(super) fn groups(
    config: &ModelConfig,
    options: &Options,
    report: &mut Report<'_>,
) -> Vec<InstanceGroup> {
    let mut groups = Vec::new();
    for (index, group) in config.instance_group.iter().enumerate() {
        for (field, text) in problems(group, options) {
            let text = format!("instance group {} of model {} {text}", group.name, report.model);
            report.add(&format!("instance_group[{index}].{field}"), text);
        }
        groups.push(InstanceGroup {
            name: group.name.clone(),
            count: group.count.unsigned_abs(),
            kind: match group.kind() {
                Kind::Gpu => InstanceKind::Gpu,
                Kind::Model => InstanceKind::Model,
                Kind::Cpu | Kind::Auto => InstanceKind::Cpu,
            },
            gpus: group.gpus.clone(),
            passive: group.passive,
        });
    }
    groups
}

fn problems(group: &ModelInstanceGroup, options: &Options) -> Vec<(&'static str, String)> {
    let has_gpus = "specifies one or more GPUs";
    match group.kind() {
        Kind::Gpu if options.gpus.is_empty() => {
            vec![("kind", "has kind KIND_GPU but server does not support GPUs".into())]
        }
        Kind::Gpu => {
            let known: Vec<String> = options.gpus.iter().map(i32::to_string).collect();
            let unknown = group.gpus.iter().filter(|gpu| !options.gpus.contains(gpu));
            let text = |gpu: &i32| {
                format!(
                    "specifies invalid or unsupported gpu id {gpu}, GPUs are: {}",
                    known.join(" ")
                )
            };
            unknown.map(|gpu| ("gpus", text(gpu))).collect()
        }
        Kind::Model if !group.gpus.is_empty() => {
            vec![("gpus", format!("has kind KIND_MODEL but {has_gpus}"))]
        }
        Kind::Cpu if !group.gpus.is_empty() => {
            vec![("gpus", format!("has kind KIND_CPU but {has_gpus}"))]
        }
        _ => Vec::new(),
    }
}
