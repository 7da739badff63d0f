//! Problem of a config parameter whose value is refused.

use troupe_base::config::{ModelConfig, Problem};

/// Adds the parameter to the texts that are about one.
pub(super) fn wrong(config: &ModelConfig, key: &str, expected: &str) -> Problem {
    let text = format!(
        "parameter '{key}' of model '{}' is '{}', expected {expected}",
        config.name,
        config.parameters.get(key).map_or("", String::as_str)
    );
    config.source_map.problem(&format!("parameters[\"{key}\"]"), text)
}
