//! The parameter that says how many bytes the iterations of one request may hold.

use troupe_base::config::{ModelConfig, Problem, parse_bytes};

/// The parameter of an ensemble that says how many bytes the iterations of one request may hold
/// between two decoupled steps, or before the client takes them.
const PARAMETER: &str = "ITERATION_WINDOW_BYTES";
/// Where a config does not say.
const DEFAULT_BYTES: u64 = 64 << 20;

/// The bytes there are for the iterations of one stage.
pub(super) fn window_bytes(config: &ModelConfig) -> Result<u64, Problem> {
    let Some(text) = config.parameters.get(PARAMETER) else { return Ok(DEFAULT_BYTES) };
    parse_bytes(text).ok_or_else(|| {
        let text = format!(
            "parameter '{PARAMETER}' of model '{}' is '{text}', expected a positive whole number \
             of bytes, or one with K, M or G",
            config.name
        );
        config.source_map.problem(&format!("parameters[\"{PARAMETER}\"]"), text)
    })
}
