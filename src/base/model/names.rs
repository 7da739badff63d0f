//! Names that callers write, turned into a model's positions and numbers.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::{
    config::{ModelConfig, instead},
    error::{Error, Result},
    request::{Context, Wanted},
    tensor::Tensor,
};

/// A version as clients write it; empty means the highest ready one.
pub fn parse_version(text: &str) -> Result<Option<i64>> {
    if text.is_empty() {
        return Ok(None);
    }
    let number: i64 = text.parse().map_err(|_| {
        Error::invalid(format!(
            "failed to get model version from specified version string '{text}' (details: stol), \
             version should be an integral value > 0"
        ))
    })?;
    if number <= 0 {
        return Err(Error::invalid(format!(
            "invalid model version specified '{text}' , version should be an integral value > 0"
        )));
    }
    Ok(Some(number))
}

/// Each tensor at the place of its name; `None` for inputs that were not sent.
pub fn place_inputs<'a>(
    config: &ModelConfig,
    inputs: impl IntoIterator<Item = (Cow<'a, str>, Tensor)>,
    context: &Context,
) -> Result<Vec<Option<Tensor>>> {
    let mut places: Vec<Option<Tensor>> = vec![None; config.inputs.len()];
    for (name, tensor) in inputs {
        let index = config
            .inputs
            .iter()
            .position(|it| *it.name == *name)
            .ok_or_else(|| tagged(context, &unexpected_input(config, &name)))?;
        if places[index].replace(tensor).is_some() {
            return Err(tagged(context, &format!("input '{name}' already exists in request")));
        }
    }
    Ok(places)
}

/// The outputs of these names; none means all.
pub fn pick_outputs(
    config: &ModelConfig,
    names: &[Cow<'_, str>],
    context: &Context,
) -> Result<Wanted> {
    if names.is_empty() {
        return Ok(Wanted::All);
    }
    let mut picked = SmallVec::new();
    for name in names {
        let found = config.outputs.iter().position(|it| *it.name == **name);
        let index = found.and_then(|it| u16::try_from(it).ok()).ok_or_else(|| {
            let text = format!("unexpected inference output '{name}' for model '{}'", config.name);
            let outputs = config.outputs.iter().map(|it| &*it.name);
            tagged(context, &instead(text, name, "outputs", outputs))
        })?;
        if picked.contains(&index) {
            return Err(tagged(context, &format!("output '{name}' already exists in request")));
        }
        picked.push(index);
    }
    Ok(Wanted::Only(picked))
}

/// Triton's text for an input that the model does not have, and those that it has.
pub fn unexpected_input(config: &ModelConfig, name: &str) -> String {
    let text = format!("unexpected inference input '{name}' for model '{}'", config.name);
    instead(text, name, "inputs", config.inputs.iter().map(|it| &*it.name))
}

fn tagged(context: &Context, text: &str) -> Error {
    Error::invalid(format!("{}{text}", context.tag()))
}
