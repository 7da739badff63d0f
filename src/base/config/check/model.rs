//! Checks a whole model: every problem at once, or the configuration the rest relies on.

use super::{
    batch_io, ensemble, instances, metrics, refused, report::ConfigReport, response_cache,
    scheduling, tensors, warmup,
};
use crate::config::{
    backend,
    draft::Draft,
    features::ServerFeatures,
    normalise::OpenInGroup,
    problem::Problem,
    types::{ModelConfig, VersionPolicy},
};
use troupe_proto::inference::{
    self, model_config::SchedulingChoice, model_version_policy::PolicyChoice,
};

/// Consumes a draft whose defaults are filled in; `open` says which, for each instance group.
pub(in crate::config) fn check(
    draft: Draft,
    open: &[OpenInGroup],
    features: &ServerFeatures,
) -> Result<ModelConfig, Vec<Problem>> {
    let Draft { proto, source_map, conflicts } = draft;
    let mut report =
        ConfigReport { model: &proto.name, source_map: &source_map, problems: Vec::new() };
    if proto.name.is_empty() {
        report.add("name", "model configuration must specify 'name'");
    }
    model_file(&proto, &mut report);
    platform(&proto, &mut report);
    let max_batch_size = max_batch_size(&proto, &mut report);
    let version_policy = version_policy(&proto, &mut report);
    let batching = scheduling::batching(&proto, &mut report);
    let inputs = tensors::inputs(&proto, &mut report);
    let mut outputs = tensors::outputs(&proto, &mut report);
    let is_ensemble = proto.platform == backend::ENSEMBLE;
    let batch_inputs = batch_io::inputs(&proto, &mut report);
    batch_io::outputs(&proto, &mut outputs, &mut report);
    let warmup = warmup::samples(&proto, &conflicts, &mut report);
    let instance_groups = match is_ensemble {
        true => Vec::new(),
        false => instances::groups(&proto, open, features, &mut report),
    };
    let first_response_bounds = metrics::first_response_bounds(&proto, &mut report);
    let response_cache = response_cache::policy(&proto, &mut report);
    refused::fields(&proto, &mut report);
    let ensemble =
        if is_ensemble { ensemble::check(&proto, &conflicts, &mut report) } else { None };
    if !report.problems.is_empty() {
        return Err(report.problems);
    }
    let parameters = proto.parameters.iter();
    Ok(ModelConfig {
        name: proto.name.as_str().into(),
        platform: proto.platform.clone(),
        backend: proto.backend.clone(),
        max_batch_size,
        inputs,
        outputs,
        batch_inputs,
        version_policy,
        instance_groups,
        batching,
        parameters: parameters.map(|(key, it)| (key.clone(), it.string_value.clone())).collect(),
        default_model_filename: proto.default_model_filename.clone(),
        ensemble,
        warmup,
        decoupled: proto.model_transaction_policy.is_some_and(|policy| policy.decoupled),
        metric_tags: proto.metric_tags.clone(),
        first_response_bounds,
        response_cache,
        source_map,
        proto,
    })
}

/// Does a file that is named from the folder of a version lie in the model's folder?
pub fn stays_in_model(name: &str) -> bool {
    !name.starts_with('/') && tensors::stays_inside(&format!("1/{name}"))
}

fn model_file(proto: &inference::ModelConfig, report: &mut ConfigReport<'_>) {
    let name = &proto.default_model_filename;
    if !stays_in_model(name) {
        let text = format!(
            "default_model_filename '{name}' of model '{}' is outside model directory",
            proto.name
        );
        report.add("default_model_filename", text);
    }
}

fn platform(config: &inference::ModelConfig, report: &mut ConfigReport<'_>) {
    let (m, platform, backend) = (report.model, &config.platform, &config.backend);
    let has_steps =
        matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if platform == backend::ENSEMBLE {
        if !backend.is_empty() {
            let text = format!(
                "Ensemble model '{m}' must have platform type 'ensemble' and empty backend type"
            );
            report.add("backend", text);
        }
        if !has_steps {
            let text = format!(
                "ensemble scheduling must be set for ensemble {m} whose platform is ensemble"
            );
            report.add("platform", text);
        }
    } else if has_steps {
        let text = format!(
            "ensemble scheduling cannot be set for model '{m}' whose platform is not ensemble"
        );
        report.add("ensemble_scheduling", text);
    } else if platform.is_empty() && backend.is_empty() {
        report.add("", format!("must specify 'platform' or 'backend' for '{m}'"));
    } else if backend.is_empty() {
        let hint = backend::instead_of_platform(platform);
        report.add("platform", format!("unexpected platform type '{platform}' for {m}{hint}"));
    } else if !platform.is_empty() {
        let agrees = match backend::of_known_platform(platform) {
            Some(known) => known == backend,
            None => !backend::has_known_platform(backend),
        };
        if !agrees {
            let text =
                format!("unexpected 'platform' and 'backend' pair, got:{platform}, {backend}");
            report.add("platform", text);
        }
    }
}

fn max_batch_size(config: &inference::ModelConfig, report: &mut ConfigReport<'_>) -> u32 {
    u32::try_from(config.max_batch_size).unwrap_or_else(|_| {
        let text = format!("'max_batch_size' must be non-negative value for {}", report.model);
        report.add("max_batch_size", text);
        0
    })
}

fn version_policy(config: &inference::ModelConfig, report: &mut ConfigReport<'_>) -> VersionPolicy {
    match config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref()) {
        Some(PolicyChoice::Latest(latest)) => VersionPolicy::Latest(latest.num_versions),
        Some(PolicyChoice::All(_)) => VersionPolicy::All,
        Some(PolicyChoice::Specific(specific)) => {
            VersionPolicy::Specific(specific.versions.clone())
        }
        None => {
            report.add(
                "version_policy",
                format!("must specify 'version policy' for {}", report.model),
            );
            VersionPolicy::All
        }
    }
}
