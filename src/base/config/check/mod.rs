//! Checks a complete draft: every problem at once, or the configuration the rest relies on.

mod batch_io;
mod ensemble;
mod flow;
mod instances;
mod metrics;
mod refused;
mod tensors;
mod warmup;

use std::time::Duration;

use super::draft::Draft;
use super::problem::{Problem, SourceMap};
use super::{Batching, DynamicBatching, ModelConfig, VersionPolicy, backend};
use troupe_proto::inference::{
    self, model_config::SchedulingChoice, model_version_policy::PolicyChoice,
};

/// The least CUDA compute capability of a GPU that instances may run on: Triton's.
pub const MINIMUM_CAPABILITY: f64 = 6.0;

/// What the server has, which a configuration may ask for.
#[derive(Clone, Debug)]
pub struct ServerFeatures {
    /// The GPUs instances may run on; `None`: the server has no driver for any. Called only for
    /// models that could use one: the answer may be slow.
    pub gpus: fn() -> Option<&'static [i32]>,
}

impl Default for ServerFeatures {
    fn default() -> ServerFeatures {
        ServerFeatures { gpus: || None }
    }
}

/// Collects what is wrong with one model.
pub(super) struct Report<'a> {
    model: &'a str,
    source_map: &'a SourceMap,
    problems: Vec<Problem>,
}

impl Report<'_> {
    fn add(&mut self, path: &str, text: impl Into<String>) {
        self.problems.push(self.source_map.problem(path, text));
    }
}

/// Consumes a draft whose defaults are filled in; `auto` are the positions of instance groups whose
/// kind is one of them.
pub(super) fn check(
    draft: Draft,
    auto: &[usize],
    options: &ServerFeatures,
) -> Result<ModelConfig, Vec<Problem>> {
    let Draft { proto, source_map, conflicts } = draft;
    let mut report = Report { model: &proto.name, source_map: &source_map, problems: Vec::new() };
    if proto.name.is_empty() {
        report.add("name", "model configuration must specify 'name'");
    }
    platform(&proto, &mut report);
    let max_batch_size = max_batch_size(&proto, &mut report);
    let version_policy = version_policy(&proto, &mut report);
    let batching = batching(&proto, &mut report);
    let inputs = tensors::inputs(&proto, &mut report);
    let mut outputs = tensors::outputs(&proto, &mut report);
    let is_ensemble = proto.platform == backend::ENSEMBLE;
    let batch_inputs = batch_io::inputs(&proto, &mut report);
    batch_io::outputs(&proto, &mut outputs, &mut report);
    let warmup = warmup::samples(&proto, &conflicts, &mut report);
    let instance_groups = match is_ensemble {
        true => Vec::new(),
        false => instances::groups(&proto, auto, options, &mut report),
    };
    let first_response_bounds = metrics::first_response_bounds(&proto, &mut report);
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
        source_map,
        proto,
    })
}

fn platform(config: &inference::ModelConfig, report: &mut Report<'_>) {
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
        report.add("platform", format!("unexpected platform type '{platform}' for {m}"));
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

fn max_batch_size(config: &inference::ModelConfig, report: &mut Report<'_>) -> u32 {
    u32::try_from(config.max_batch_size).unwrap_or_else(|_| {
        let text = format!("'max_batch_size' must be non-negative value for {}", report.model);
        report.add("max_batch_size", text);
        0
    })
}

fn version_policy(config: &inference::ModelConfig, report: &mut Report<'_>) -> VersionPolicy {
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

fn batching(config: &inference::ModelConfig, report: &mut Report<'_>) -> Batching {
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
    if dynamic.preserve_ordering && policy.is_some_and(|it| it.decoupled) {
        let text = "a decoupled model answers when it likes, so its answers have no order to keep";
        report.add("dynamic_batching.preserve_ordering", format!("{text} for {m}"));
    }
    Batching::Dynamic(DynamicBatching {
        preferred,
        max_queue_delay: Duration::from_micros(dynamic.max_queue_delay_microseconds),
        preserve_ordering: dynamic.preserve_ordering,
    })
}
