//! Answers requests by running other models: config → petgraph → plan → step actors.

use std::sync::Arc;

use crate::{
    config::ModelConfig,
    engines::Engines,
    model::{Infer, Model},
    statistics::Statistics,
};

/// What an ensemble is made of.
pub struct Setup {
    /// The checked config.
    pub config: Arc<ModelConfig>,
    /// Shared with the model.
    pub stats: Arc<Statistics>,
    /// The model of each step, in the order of the config; one model may serve several steps.
    pub steps: Vec<Arc<Model>>,
    /// Where step actors live.
    pub engines: Engines,
}

/// Checks the config against the completed configs of its steps and starts the step actors.
///
/// Every problem is one line, Triton's text first, ready to be joined for a reason.
pub async fn start(setup: Setup) -> Result<Arc<dyn Infer>, Vec<String>> {
    Err(vec![format!("not built yet: {}", setup.config.name)])
}
