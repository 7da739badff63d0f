//! Checks the instance groups of a model.

use super::{report::ConfigReport, scaling};
use crate::config::{
    backend_traits::BackendTraits,
    features::{MINIMUM_CAPABILITY, ServerFeatures},
    normalise::OpenInGroup,
    types::{InstanceGroup, InstanceKind, RateLimits, RateResource},
};
use troupe_proto::inference::{
    ModelConfig, ModelInstanceGroup, ModelRateLimiter, model_instance_group::Kind,
    model_rate_limiter::Resource,
};

/// Instances of a model at most: each is a process, a thread or a copy of the weights.
const MAX_INSTANCES: u64 = 1024;

/// The checked groups, whose defaults have been filled in before: `open` says which, for each.
pub(super) fn groups(
    config: &ModelConfig,
    open: &[OpenInGroup],
    features: &ServerFeatures,
    report: &mut ConfigReport<'_>,
) -> Vec<InstanceGroup> {
    let mut groups = Vec::new();
    let mut instances = 0;
    for (index, (group, open)) in config.instance_group.iter().zip(open).enumerate() {
        for (field, text) in problems(group, &config.backend, features) {
            let text = format!("instance group {} of model {} {text}", group.name, report.model);
            report.add(&format!("instance_group[{index}].{field}"), text);
        }
        let devices = group.gpus.len().max(1) as u64;
        instances += u64::from(group.count.unsigned_abs()) * devices;
        if group.count < 1 || MAX_INSTANCES < instances {
            let text = format!(
                "instance group {} of model {} has count {}, expected a number from 1 on and at \
                 most {MAX_INSTANCES} instances of a model in all",
                group.name, report.model, group.count
            );
            report.add(&format!("instance_group[{index}].count"), text);
        }
        groups.push(InstanceGroup {
            name: group.name.clone(),
            count: group.count.unsigned_abs(),
            is_default_count: open.count,
            kind: match group.kind() {
                Kind::Gpu => InstanceKind::Gpu,
                Kind::Model => InstanceKind::Model,
                Kind::Cpu | Kind::Auto => InstanceKind::Cpu,
            },
            is_auto: open.kind,
            gpus: group.gpus.clone(),
            passive: group.passive,
            rate_limits: group.rate_limiter.as_ref().map(rate_limits).unwrap_or_default(),
            scaling: scaling::of(config, index, MAX_INSTANCES, report),
        });
    }
    groups
}

fn rate_limits(proto: &ModelRateLimiter) -> RateLimits {
    let resource = |it: &Resource| RateResource {
        name: (*it.name).into(),
        global: it.global,
        count: it.count,
    };
    RateLimits {
        resources: proto.resources.iter().map(resource).collect(),
        priority: proto.priority,
    }
}

fn problems(
    group: &ModelInstanceGroup,
    backend: &str,
    features: &ServerFeatures,
) -> Vec<(&'static str, String)> {
    let has_gpus = "specifies one or more GPUs";
    match group.kind() {
        Kind::Gpu if !BackendTraits::of(backend).can_use_gpus => {
            let text =
                format!("has kind KIND_GPU but models of backend '{backend}' run on the CPU only");
            vec![("kind", text)]
        }
        Kind::Gpu => match (features.gpus)() {
            None => vec![("kind", "has kind KIND_GPU but server does not support GPUs".into())],
            Some([]) if group.gpus.is_empty() => {
                vec![("kind", "has kind KIND_GPU but no GPUs are available".into())]
            }
            Some(known) => unknown_gpus(&group.gpus, known),
        },
        Kind::Model if !group.gpus.is_empty() => {
            vec![("gpus", format!("has kind KIND_MODEL but {has_gpus}"))]
        }
        Kind::Cpu if !group.gpus.is_empty() => {
            vec![("gpus", format!("has kind KIND_CPU but {has_gpus}"))]
        }
        _ => Vec::new(),
    }
}

fn unknown_gpus(wanted: &[i32], known: &[i32]) -> Vec<(&'static str, String)> {
    let shown: Vec<String> = known.iter().map(i32::to_string).collect();
    let text = |gpu: &i32| {
        format!(
            "specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum \
             required CUDA compute compatibility of {MINIMUM_CAPABILITY:.6} are: {}",
            shown.join(", ")
        )
    };
    let unknown = wanted.iter().filter(|gpu| !known.contains(gpu));
    unknown.map(|gpu| ("gpus", text(gpu))).collect()
}
