//! Says everything that is wrong with the configs of repositories, without loading a model.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Overrides, Settings,
    definition::{self, Content, Definition, config_file},
    graph::{Graph, Upstream, unmet},
    node::{Failure, NO_VERSION},
    scan,
};
use crate::{
    backend,
    config::{Draft, ModelConfig, Problem},
    ensemble,
};

/// Every problem, one line each, with its place; empty if all models could be loaded as far as
/// their configs tell. Blocks.
pub fn check(settings: &Settings) -> Vec<String> {
    let (folders, mut problems) = scan::folders(&settings.repositories);
    let mut models = BTreeMap::new();
    for (name, places) in &folders {
        let at = |it: &std::path::PathBuf| config_file(settings, it).unwrap_or(it.clone());
        match definition::find(settings, &folders, name, &Overrides::default()) {
            Ok(definition) => {
                let at = at(&definition.model_dir);
                let model = single(settings, definition);
                problems.extend(model.problems.iter().map(|it| match it {
                    Said::At(problem) => problem.to_string(),
                    Said::Of(text) => format!("{}: {text}", at.display()),
                }));
                models.insert(name.clone(), model);
            }
            Err(found) => {
                problems.extend(found.problems.iter().map(Problem::to_string));
                let elsewhere = if found.problems.is_empty() { places.as_slice() } else { &[] };
                let reason = found.failure.reason();
                problems.extend(elsewhere.iter().map(|it| format!("{}: {reason}", at(it).display())));
            }
        }
    }
    problems
}
