//! Checks the configs of repositories without loading a model: `troupe check`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Overrides, Settings,
    disk::{
        definition::{self, Content, Definition, RequiredModel, config_file},
        labels, pipeline,
        scan::{self, Folders},
        warmup,
    },
    failure::{LoadFailure, no_version},
    graph::DependencyGraph,
    operation::{
        open::unknown_backend,
        requirements::{StepStatus, unmet},
    },
};
use troupe_base::config::{Draft, ModelConfig, Problem, SourceMap};
use troupe_engine::ensemble;

/// Every problem, one line each, with its position; empty if all models could be loaded as far as
/// their configs tell. Blocks.
pub fn check(settings: &Settings) -> Vec<String> {
    let (folders, unreadable) = scan::folders(&settings.repositories);
    let mut problems = Vec::new();
    let mut models = BTreeMap::new();
    for name in folders.keys() {
        match definition::read(settings, &folders, name, &Overrides::default()) {
            Ok(definition) => {
                let file = config_file(settings, &definition.model_dir);
                let file = file.unwrap_or_else(|| definition.model_dir.clone());
                let model = CheckedModel { config: None, file, definition };
                models.insert(name.clone(), model.finish(settings, &mut problems));
            }
            Err(LoadFailure::Unreadable(found)) => problems.extend(found),
            Err(failure) => {
                let copies = folders[name].iter();
                problems.extend(copies.map(|folder| whole_file(folder, failure.reason())));
            }
        }
    }
    complete(&mut models);
    let cycles = graph(&models).cycles();
    for (name, model) in &models {
        model.check_steps(settings, &folders, &models, &mut problems);
        model.check_warmup(&mut problems);
        if let Some(cycle) = cycles.get(name) {
            problems.push(model.problem("ensemble_scheduling", cycle.clone()));
        }
    }
    unreadable.into_iter().chain(problems.iter().map(Problem::to_string)).collect()
}

type CheckedModels = BTreeMap<Arc<str>, CheckedModel>;

/// A model as far as it is known without loading it.
struct CheckedModel {
    definition: Definition,
    /// Finished, as far as it is written; `None` where it has problems.
    config: Option<Arc<ModelConfig>>,
    file: PathBuf,
}

impl CheckedModel {
    fn finish(mut self, settings: &Settings, problems: &mut Vec<Problem>) -> CheckedModel {
        match &self.definition.content {
            Content::Ensemble(config, _) => self.config = Some(config.clone()),
            Content::Single(draft) => match Draft::clone(draft).finish(&settings.config) {
                Ok(config) => {
                    if settings.backends.find(&config.backend).is_none() {
                        let text = unknown_backend(&config.backend);
                        problems.push(config.source_map.problem("backend", text.to_string()));
                    }
                    self.config = Some(Arc::new(config));
                }
                Err(found) => problems.extend(found),
            },
        }
        self.check_labels(problems);
        if self.definition.versions.is_empty() {
            problems.push(self.problem("version_policy", no_version(&self.definition.name)));
        }
        self
    }

    fn problem(&self, path: &str, text: String) -> Problem {
        match &self.config {
            Some(config) => config.source_map.problem(path, text),
            None => whole_file(&self.file, text),
        }
    }

    /// Files that its outputs name and that cannot be read.
    fn check_labels(&self, problems: &mut Vec<Problem>) {
        let Some(config) = &self.config else { return };
        for (index, output) in config.outputs.iter().enumerate() {
            if let Err(error) = labels::read_one(&self.definition.model_dir, config, output) {
                let path = format!("output[{index}].label_filename");
                problems.push(self.problem(&path, error.to_string()));
            }
        }
    }

    /// What its steps lack, and where they contradict it.
    fn check_steps(
        &self,
        settings: &Settings,
        folders: &Folders,
        models: &CheckedModels,
        problems: &mut Vec<Problem>,
    ) {
        let Content::Ensemble(config, required) = &self.definition.content else { return };
        let status_of = |name: &str| match (folders.get(name).map(Vec::len), models.get(name)) {
            (Some(1), Some(model)) => model.status(),
            // What is wrong with its config is reported already.
            (Some(1), None) => StepStatus::Loaded(versions_of(required, name)),
            _ => StepStatus::Missing,
        };
        let unmet = unmet(&config.name, required, &status_of);
        problems.extend(unmet.iter().map(|unmet| unmet.problem(config)));
        let written = |step: &RequiredModel| models.get(&step.model)?.written();
        let steps: Vec<_> = required.iter().map(written).collect();
        let mut config = config.clone();
        if let Some(file) = &self.definition.pipeline {
            // Its types are those of its models: where one is not known, nothing more is.
            let known = steps.iter().copied().collect::<Option<Vec<_>>>();
            let Some(known) = known.filter(|_| unmet.is_empty()) else { return };
            match pipeline::typed(settings, &config, file, known.into_iter()) {
                Ok(typed) => config = typed,
                Err(found) => return problems.extend(found),
            }
        }
        let Some(ensemble) = &config.ensemble else { return };
        problems.extend(ensemble::check(&config, ensemble, &steps));
    }

    /// Its samples are made as they would be to load it.
    fn check_warmup(&self, problems: &mut Vec<Problem>) {
        if let Some(config) = self.written()
            && let Err(found) = warmup::samples(config, &self.definition.model_dir)
        {
            problems.extend(found);
        }
    }

    fn status(&self) -> StepStatus {
        let versions = &self.definition.versions;
        match versions.is_empty() {
            true => StepStatus::NotLoaded(None),
            false => StepStatus::Loaded(versions.keys().copied().collect()),
        }
    }

    /// Its config, if inputs and outputs are written: otherwise its backend completes them.
    fn written(&self) -> Option<&ModelConfig> {
        let config = self.config.as_deref().filter(|_| self.definition.pipeline.is_none())?;
        (!config.inputs.is_empty() && !config.outputs.is_empty()).then_some(config)
    }
}

/// Says of each ensemble whether it is decoupled, as soon as that is known of its steps.
fn complete(models: &mut CheckedModels) {
    let ensembles = models.values_mut().filter(|model| !model.definition.required().is_empty());
    for config in ensembles.filter_map(|model| model.config.as_mut()) {
        *config = ensemble::completed(config, std::iter::empty());
    }
    loop {
        let mut changed = Vec::new();
        for (name, model) in models.iter() {
            let Content::Ensemble(_, required) = &model.definition.content else { continue };
            let Some(config) = &model.config else { continue };
            let steps =
                required.iter().filter_map(|step| models.get(&step.model)?.config.as_deref());
            let completed = ensemble::completed(config, steps);
            if completed.decoupled != config.decoupled {
                changed.push((name.clone(), completed));
            }
        }
        if changed.is_empty() {
            return;
        }
        for (name, config) in changed {
            models.entry(name).and_modify(|model| model.config = Some(config));
        }
    }
}

fn whole_file(file: &Path, text: String) -> Problem {
    SourceMap::whole_file(&file.to_string_lossy()).problem("", text)
}

fn versions_of(required: &[RequiredModel], name: &str) -> BTreeSet<i64> {
    required.iter().filter(|step| &*step.model == name).map(|step| step.version).collect()
}

fn graph(models: &CheckedModels) -> DependencyGraph {
    let steps = |model: &CheckedModel| -> Vec<Arc<str>> {
        model.definition.required().iter().map(|step| step.model.clone()).collect()
    };
    DependencyGraph::new(models.iter().map(|(name, model)| (name.clone(), steps(model))))
}
