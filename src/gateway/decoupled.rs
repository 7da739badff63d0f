//! Refusals of models that answer any number of times, by endpoints that take one answer.

use troupe_base::{
    error::{Error, Result},
    model::Model,
};

/// Refuses a decoupled model with Triton's `text`, and names what takes all its answers: `instead`.
pub(crate) fn check(model: &Model, text: &str, instead: &str) -> Result<()> {
    if !model.config.decoupled {
        return Ok(());
    }
    let name = model.name();
    let who = match model.steps.iter().enumerate().find(|(_, it)| it.config.decoupled) {
        Some((index, step)) => format!(
            "ensemble '{name}' answers any number of times, as its step {index} (model '{}') does",
            step.name()
        ),
        None => format!("model '{name}' answers any number of times"),
    };
    Err(Error::unsupported(format!("{text}: {who}; use {instead}")))
}
