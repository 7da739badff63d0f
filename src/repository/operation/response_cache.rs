//! Whether the answers of a model can be kept, and how servers that share a cache know it.

use std::sync::Arc;

use crate::{Settings, disk::fingerprint};
use troupe_base::{
    backend::ModelFiles,
    config::{self, ModelConfig, Problem, Uncacheable},
    model::ModelParts,
};
use troupe_proto::inference::model_config::SchedulingChoice;

/// Why the answers of an ensemble cannot be kept, although its config says that they are to be.
pub(super) fn problem(config: &ModelConfig, steps: &[Arc<ModelConfig>]) -> Option<Problem> {
    config.response_cache?;
    let is_sequence = |step: &Arc<ModelConfig>| {
        matches!(step.proto.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)))
    };
    let why = match steps.iter().any(is_sequence) {
        true => Uncacheable::Sequences,
        false if config.decoupled => Uncacheable::Decoupled,
        false => return None,
    };
    let text = config::uncacheable(&config.name, why);
    Some(config.source_map.problem("response_cache", text))
}

/// The fingerprint of a version, where servers share a cache. Blocks as long as it takes to read its
/// files.
pub(super) fn of_version(
    settings: &Settings,
    config: &ModelConfig,
    files: &ModelFiles,
) -> Option<u128> {
    settings.cache.as_ref().filter(|it| it.is_shared())?;
    let made = fingerprint::of_files(config, &files.model_dir, files.version);
    let unreadable = |error| {
        let (name, version) = (&config.name, files.version);
        let text = "answers of other servers are not used for it: its files cannot be read";
        tracing::warn!("model '{name}' version {version}: {text}: {error}");
    };
    made.map_err(unreadable).ok()
}

/// The same of an ensemble.
pub(super) fn of_ensemble(settings: &Settings, parts: &ModelParts) -> Option<u128> {
    settings.cache.as_ref().filter(|it| it.is_shared())?;
    let steps: Option<Vec<u128>> = parts.steps.iter().map(|it| it.fingerprint).collect();
    Some(fingerprint::of_ensemble(&parts.config, parts.version, &steps?))
}
