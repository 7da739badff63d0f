//! Refusals of models that answer any number of times, by endpoints that take one answer.

use crate::ServerState;
use troupe_base::{
    error::{Error, Result},
    model::Model,
};

/// Refuses a decoupled model with Triton's `text`, and names what takes all its answers: `instead`.
pub(crate) fn check(state: &ServerState, model: &Model, text: &str, instead: &str) -> Result<()> {
    if !model.config.decoupled {
        return Ok(());
    }
    let name = model.name();
    let catalog = state.repository.catalog.load();
    let steps = model.config.ensemble.iter().flat_map(|it| &it.steps).enumerate();
    let version = |number: i64| (number != -1).then_some(number);
    let mut decoupled = steps.filter(|(_, step)| {
        catalog.get(&step.model, version(step.version)).is_ok_and(|it| it.config.decoupled)
    });
    let who = match decoupled.next() {
        Some((index, step)) => format!(
            "ensemble '{name}' answers any number of times, as its step {index} (model '{}') does",
            step.model
        ),
        None => format!("model '{name}' answers any number of times"),
    };
    Err(Error::unsupported(format!("{text}: {who}; use {instead}")))
}
