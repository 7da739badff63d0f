//! Who runs together, and when: the actor in front of a model's instances.

use std::sync::Arc;

use crate::{
    backend::Backend,
    config::ModelConfig,
    engines::Engines,
    error::{Error, Result},
    model::{Health, Infer},
    statistics::Statistics,
};

/// What a batcher is made of.
pub struct Setup {
    /// The completed config.
    pub config: Arc<ModelConfig>,
    /// Shared with the model.
    pub stats: Arc<Statistics>,
    /// Shared with the model.
    pub health: Arc<Health>,
    /// Opens the instances.
    pub backend: Backend,
    /// Where light actors live.
    pub engines: Engines,
}

/// Opens all instances, in parallel; answers once every one is open, or with the first failure.
pub async fn start(setup: Setup) -> Result<Arc<dyn Infer>> {
    Err(Error::unsupported(format!("not built yet: {}", setup.config.name)))
}
