//! Says everything that is wrong with the configs of repositories, without loading a model.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Overrides, Settings,
    definition::{self, Content, Definition, config_file},
    graph::{Graph, Needed, Upstream, unmet},
    labels,
    node::{Failure, NO_VERSION},
    scan::{self, Folders},
    warmup,
};
use troupe_base::config::{Draft, ModelConfig, Problem, SourceMap};
use troupe_engine::ensemble;

/// Every problem, one line each, with its place; empty if all models could be loaded as far as
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
                let model = Model { config: None, file, definition };
                models.insert(name.clone(), model.finish(settings, &mut problems));
            }
            Err(Failure::Unreadable(found)) => problems.extend(found),
            Err(failure) => {
                let places = folders[name].iter();
                problems.extend(places.map(|it| whole(it, failure.reason())));
            }
        }
    }
    complete(&mut models);
    let rings = rings(&models);
    for (name, model) in &models {
        model.check_steps(&folders, &models, &mut problems);
        model.check_warmup(&mut problems);
        if let Some(ring) = rings.get(name) {
            problems.push(model.problem("ensemble_scheduling", ring.clone()));
        }
    }
    unreadable.into_iter().chain(problems.iter().map(Problem::to_string)).collect()
}

type Models = BTreeMap<Arc<str>, Model>;

struct Model {
    definition: Definition,
    /// Finished, as far as it is written.
    config: Option<Arc<ModelConfig>>,
    file: PathBuf,
}

impl Model {
    fn finish(mut self, settings: &Settings, problems: &mut Vec<Problem>) -> Model {
        match &self.definition.content {
            Content::Ensemble(config, _) => self.config = Some(config.clone()),
            Content::Single(draft) => match Draft::clone(draft).finish(&settings.config) {
                Ok(config) => {
                    if settings.backends.find(&config.backend).is_none() {
                        let text = super::load::unknown_backend(&config.backend);
                        problems.push(config.source_map.problem("backend", text.to_string()));
                    }
                    self.config = Some(Arc::new(config));
                }
                Err(found) => problems.extend(found),
            },
        }
        self.check_labels(problems);
        if self.definition.versions.is_empty() {
            let name = &self.definition.name;
            let text = format!("{NO_VERSION} under the version policy of model '{name}'");
            problems.push(self.problem("version_policy", text));
        }
        self
    }

    fn problem(&self, path: &str, text: String) -> Problem {
        match &self.config {
            Some(config) => config.source_map.problem(path, text),
            None => whole(&self.file, text),
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
    fn check_steps(&self, folders: &Folders, models: &Models, problems: &mut Vec<Problem>) {
        let Content::Ensemble(config, needed) = &self.definition.content else { return };
        let upstream = |name: &str| match (folders.get(name).map(Vec::len), models.get(name)) {
            (Some(1), Some(model)) => model.upstream(),
            // What is wrong with its config was told.
            (Some(1), None) => Upstream::Loaded(versions_of(needed, name)),
            _ => Upstream::Missing,
        };
        let unmet = unmet(&config.name, needed, &upstream);
        problems.extend(unmet.iter().map(|it| it.problem(config)));
        let Some(ensemble) = &config.ensemble else { return };
        let written = |it: &Needed| models.get(&it.model)?.written();
        let steps: Vec<_> = needed.iter().map(written).collect();
        problems.extend(ensemble::check(config, ensemble, &steps));
    }

    /// Its samples are made as they would be to load it.
    fn check_warmup(&self, problems: &mut Vec<Problem>) {
        if let Some(config) = self.written()
            && let Err(found) = warmup::samples(config, &self.definition.model_dir)
        {
            problems.extend(found);
        }
    }

    fn upstream(&self) -> Upstream {
        let versions = &self.definition.versions;
        match versions.is_empty() {
            true => Upstream::NotLoaded(None),
            false => Upstream::Loaded(versions.keys().copied().collect()),
        }
    }

    /// Its config, if inputs and outputs are written: otherwise its backend completes them.
    fn written(&self) -> Option<&ModelConfig> {
        let config = self.config.as_deref()?;
        (!config.inputs.is_empty() && !config.outputs.is_empty()).then_some(config)
    }
}

/// Says of each ensemble whether it is decoupled, as soon as that is known of its steps.
fn complete(models: &mut Models) {
    let ensembles = models.values_mut().filter(|it| !it.definition.needed().is_empty());
    for config in ensembles.filter_map(|it| it.config.as_mut()) {
        *config = ensemble::completed(config, std::iter::empty());
    }
    loop {
        let mut changed = Vec::new();
        for (name, model) in models.iter() {
            let Content::Ensemble(_, needed) = &model.definition.content else { continue };
            let Some(config) = &model.config else { continue };
            let steps = needed.iter().filter_map(|it| models.get(&it.model)?.config.as_deref());
            let completed = ensemble::completed(config, steps);
            if completed.decoupled != config.decoupled {
                changed.push((name.clone(), completed));
            }
        }
        if changed.is_empty() {
            return;
        }
        for (name, config) in changed {
            models.entry(name).and_modify(|it| it.config = Some(config));
        }
    }
}

fn whole(file: &Path, text: String) -> Problem {
    SourceMap::whole_file(&file.to_string_lossy()).problem("", text)
}

fn versions_of(needed: &[Needed], name: &str) -> std::collections::BTreeSet<i64> {
    needed.iter().filter(|it| &*it.model == name).map(|it| it.version).collect()
}

fn rings(models: &Models) -> BTreeMap<Arc<str>, String> {
    let steps = |model: &Model| -> Vec<Arc<str>> {
        model.definition.needed().iter().map(|it| it.model.clone()).collect()
    };
    let edges: Vec<_> = models.iter().map(|(name, it)| (name, steps(it))).collect();
    Graph::new(edges.iter().map(|(name, steps)| (*name, steps.as_slice()))).rings()
}
