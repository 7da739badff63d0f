//! How servers that share a response cache know a model: fingerprints of what was loaded.

use crate::{Settings, disk::fingerprint};
use troupe_base::{backend::ModelFiles, config::ModelConfig, model::ModelParts};

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
