//! The signature of a model that is there already: what it takes and gives, asked of its config and,
//! where that does not say, of its file.

use std::sync::Arc;

use super::wiring::{Step, StepTensor};
use crate::{
    Settings, compile,
    disk::scan::{self, Folders},
};
use troupe_base::config::ModelConfig;
use troupe_options::NewTarget;

/// For the folder of models that a command names.
pub(super) fn settings(target: &NewTarget) -> Settings {
    let mut settings =
        Settings { repositories: vec![target.model_repository.clone()], ..Settings::default() };
    settings.backend.options = target.backend_config.iter().cloned().collect();
    settings.backend.provision = true;
    settings
}

/// The models of these names, in their order, or every problem.
pub(super) fn read(settings: &Settings, names: &[String]) -> Result<Vec<Arc<ModelConfig>>, String> {
    let (folders, unreadable) = scan::folders(&settings.repositories);
    if let Some(problem) = unreadable.first() {
        return Err(problem.clone());
    }
    let mut problems = Vec::new();
    let mut configs = Vec::new();
    for name in names {
        match read_one(settings, &folders, name) {
            Ok(config) => configs.push(config),
            Err(problem) if problems.contains(&problem) => (),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(configs) } else { Err(problems.join("\n")) }
}

fn read_one(
    settings: &Settings,
    folders: &Folders,
    name: &str,
) -> Result<Arc<ModelConfig>, String> {
    if !folders.contains_key(name) {
        let there: Vec<&str> = folders.keys().map(|it| &**it).collect();
        let repository = settings.repositories[0].display();
        let there = if there.is_empty() { "nothing".to_owned() } else { there.join(", ") };
        return Err(format!(
            "there is no model `{name}` in {repository}, which has: {there} (to make one: `troupe \
             new model {name}`)"
        ));
    }
    let config = compile::finished(settings, folders, name)?;
    if config.inputs.is_empty() || config.outputs.is_empty() {
        return Err(format!(
            "model `{name}` does not say what it takes and gives: write its inputs and outputs \
             into {}",
            settings.repositories[0].join(name).join("config.pbtxt").display()
        ));
    }
    Ok(config)
}

/// What a model takes and gives as an ensemble sees it: with the batch dimension, unless all of its
/// steps have one.
pub(super) fn step(config: &ModelConfig, is_batched: bool) -> Step {
    let dims = |dims: &[i64]| if is_batched { dims.to_vec() } else { config.with_batch(dims) };
    Step {
        model: config.name.to_string(),
        inputs: config
            .inputs
            .iter()
            .map(|it| StepTensor {
                name: it.name.to_string(),
                dtype: it.dtype,
                dims: dims(&it.dims),
                is_optional: it.optional,
            })
            .collect(),
        outputs: config
            .outputs
            .iter()
            .map(|it| StepTensor {
                name: it.name.to_string(),
                dtype: it.dtype,
                dims: dims(&it.dims),
                is_optional: false,
            })
            .collect(),
    }
}
