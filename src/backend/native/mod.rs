//! Ops built into the server: test doubles for other backends, and the measure of the engine's cost.

use std::sync::Arc;

use super::{Backend, Place, Settings};
use crate::{
    config::ModelConfig,
    error::{Error, Result},
};

/// Finds the op a config names.
pub fn prepare(_: &Settings, _: &Place, config: Arc<ModelConfig>) -> Result<Backend> {
    Err(Error::unsupported(format!("no op for '{}'", config.name)))
}
