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
        initial_state, labels, misnamed, pipeline,
        scan::{self, Folders},
        warmup,
    },
    failure::{LoadFailure, unknown_backend},
    graph::DependencyGraph,
    operation::{
        open::{files_of, merge, nothing_to_ask},
        requirements::{StepStatus, unmet},
    },
    scheduling_notes,
};
use troupe_base::{
    backend::ModelFiles,
    config::{Draft, ModelConfig, Problem, SourceMap, json, scheduling_warnings},
};
use troupe_engine::ensemble;

/// What was found, one line each, with its position.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// What keeps a model from being loaded; empty if all could be, as far as their files tell.
    pub problems: Vec<String>,
    /// What can be loaded and will hardly do what was meant.
    pub warnings: Vec<String>,
    /// What is known only once code of models has run, so that only a load can compare it.
    pub not_compared: Vec<String>,
    /// What is right, and may surprise.
    pub notes: Vec<String>,
}

/// Checks repositories without loading a model. Blocks.
pub fn check(settings: &Settings) -> CheckReport {
    let (folders, unreadable) = scan::folders(&settings.repositories);
    let (mut problems, mut warnings, mut not_compared) = (Vec::new(), Vec::new(), Vec::new());
    let mut notes = Vec::new();
    if folders.is_empty() && unreadable.is_empty() {
        warnings.extend(scan::emptiness(&settings.repositories));
    }
    settings.repositories.iter().for_each(|it| warnings.extend(scan::dangling_links(it)));
    for folder in folders.values().flatten() {
        warnings.extend(scan::dangling_links(folder));
        warnings.extend(definition::misnamed_config(settings, folder));
        warnings.extend(misnamed::misnamed_version(folder));
    }
    let mut models = BTreeMap::new();
    for name in folders.keys() {
        match definition::read(settings, &folders, name, &Overrides::default()) {
            Ok(definition) => {
                let file = config_file(settings, &definition.model_dir);
                let file = file.unwrap_or_else(|| definition.model_dir.clone());
                let model = CheckedModel::new(definition, file);
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
        model.warn(&models, &mut warnings);
        not_compared.extend(model.not_compared(&models));
        let sound = model.config.as_ref().filter(|_| !model.is_broken);
        notes.extend(sound.into_iter().flat_map(|it| scheduling_notes::notes(it)).map(told));
        if let Some(cycle) = cycles.get(name) {
            problems.push(model.problem("ensemble_scheduling", cycle.clone()));
        }
    }
    CheckReport {
        problems: unreadable.into_iter().chain(problems.into_iter().map(told)).collect(),
        warnings,
        not_compared,
        notes,
    }
}

type CheckedModels = BTreeMap<Arc<str>, CheckedModel>;

/// A model as far as it is known without loading it.
struct CheckedModel {
    definition: Definition,
    /// Finished, as far as it is written; `None` where it has problems.
    config: Option<Arc<ModelConfig>>,
    file: PathBuf,
    /// Its config or its files cannot be used: what else is wrong with them would follow from that.
    is_broken: bool,
    /// Its code may say what its inputs and outputs are.
    completes_itself: bool,
    /// Of its files.
    warnings: Vec<String>,
}

impl CheckedModel {
    fn new(definition: Definition, file: PathBuf) -> CheckedModel {
        CheckedModel {
            definition,
            config: None,
            file,
            is_broken: false,
            completes_itself: false,
            warnings: Vec::new(),
        }
    }

    fn finish(mut self, settings: &Settings, problems: &mut Vec<Problem>) -> CheckedModel {
        match &self.definition.content {
            Content::Ensemble(config, _) => self.config = Some(config.clone()),
            Content::Single(draft) => {
                let mut draft = Draft::clone(draft);
                self.inspect(settings, &mut draft, problems);
                match draft.finish(&settings.config) {
                    Ok(config) => {
                        let config = Arc::new(config);
                        self.config = Some(config.clone());
                        self.check_files(settings, config, problems);
                    }
                    Err(found) => {
                        self.is_broken = true;
                        problems.extend(found);
                    }
                }
            }
        }
        self.check_labels(problems);
        if self.definition.versions.is_empty() {
            self.is_broken = true;
            problems.push(self.problem("version_policy", definition::no_version(&self.definition)));
        }
        self
    }

    /// The files of the version that is loaded, the newest of several.
    fn files(&self) -> Option<ModelFiles> {
        let version = *self.definition.versions.keys().next_back()?;
        Some(files_of(&self.definition, version))
    }

    /// Fills in what the model's files tell.
    fn inspect(&mut self, settings: &Settings, draft: &mut Draft, problems: &mut Vec<Problem>) {
        let Some(kind) = settings.backends.find(&draft.proto.backend) else { return };
        let Some(files) = self.files() else { return };
        let written = json::print(&draft.proto);
        let found = kind.inspect(&settings.backend, &files, &written);
        let merged = found.and_then(|it| it.map_or(Ok(()), |it| merge(draft, &it)));
        if let Err(error) = merged {
            self.is_broken = true;
            problems.push(draft.source_map.problem("", error.to_string()));
        }
    }

    /// The finished config beside the files.
    fn check_files(
        &mut self,
        settings: &Settings,
        config: Arc<ModelConfig>,
        problems: &mut Vec<Problem>,
    ) {
        let Some(kind) = settings.backends.find(&config.backend) else {
            let text = unknown_backend(&config.backend);
            self.is_broken = true;
            return problems.push(config.source_map.problem("backend", text.to_string()));
        };
        let Some(files) = self.files().filter(|_| !self.is_broken) else { return };
        let seen = config.for_executor().map_or_else(|| config.clone(), Arc::new);
        match kind.check(&settings.backend, &files, seen) {
            Ok(found) => {
                problems.extend(found.problems);
                self.warnings = found.warnings;
                self.completes_itself = found.completes_itself;
                self.is_broken = found.is_broken;
            }
            Err(error) => {
                self.is_broken = true;
                problems.push(config.source_map.problem("", error.to_string()));
            }
        }
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
        let known: Vec<Arc<str>> = folders.keys().cloned().collect();
        let unmet = unmet(&config.name, required, &known, &status_of);
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

    /// What a load warns of.
    fn warn(&self, models: &CheckedModels, warnings: &mut Vec<String>) {
        warnings.extend(self.warnings.iter().cloned());
        let Some(config) = &self.config else { return };
        let required = self.definition.required();
        match &config.ensemble {
            // Its types, on which warnings depend, are made up before its models are known.
            Some(_) if self.definition.pipeline.is_some() => (),
            Some(ensemble) => {
                let written = |step: &RequiredModel| models.get(&step.model)?.written();
                let steps: Vec<_> = required.iter().map(written).collect();
                let found = ensemble::warnings(config, ensemble, &steps);
                warnings.extend(found.into_iter().map(told));
            }
            None if self.is_broken || self.completes_itself => (),
            None => {
                warnings.extend(nothing_to_ask(config).map(told));
                warnings.extend(scheduling_warnings(config).into_iter().map(told));
            }
        }
    }

    /// An ensemble some of whose steps tell what they take only when they are loaded.
    fn not_compared(&self, models: &CheckedModels) -> Option<String> {
        let config = self.config.as_ref()?;
        let is_unknown = |step: &&RequiredModel| {
            models.get(&step.model).is_some_and(|it| !it.is_broken && it.written().is_none())
        };
        let unknown = self.definition.required().iter().filter(is_unknown);
        let unknown: BTreeSet<_> = unknown.map(|it| format!("'{}'", it.model)).collect();
        if unknown.is_empty() {
            return None;
        }
        let text = format!(
            "ensemble {}: inputs and outputs of {} are known only once their code has run, so what \
             it maps to them was not compared: `troupe check --load` does",
            config.name,
            Vec::from_iter(unknown).join(", ")
        );
        Some(told(self.problem("", text)))
    }

    /// Its samples, and what its sequences begin with, are made as they would be to load it.
    fn check_warmup(&self, problems: &mut Vec<Problem>) {
        if let Some(config) = self.written() {
            let model_dir = &self.definition.model_dir;
            let executor = config.for_executor();
            let config = executor.as_ref().unwrap_or(config);
            problems.extend(initial_state::read(config, model_dir).err().unwrap_or_default());
            problems.extend(warmup::samples(config, model_dir).err().unwrap_or_default());
        }
    }

    fn status(&self) -> StepStatus {
        let versions = &self.definition.versions;
        match versions.is_empty() {
            true => StepStatus::NotLoaded(None),
            false => StepStatus::Loaded(versions.keys().copied().collect()),
        }
    }

    /// Its config, if that has all inputs and outputs: they are written, or nothing completes them.
    fn written(&self) -> Option<&ModelConfig> {
        let config = self.config.as_deref().filter(|_| self.definition.pipeline.is_none())?;
        let is_written = !config.inputs.is_empty() && !config.outputs.is_empty();
        let is_complete = !self.completes_itself && !self.is_broken;
        (is_written || is_complete).then_some(config)
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

/// The problem as a line; of a model without a config, its place is the model's folder.
fn told(mut problem: Problem) -> String {
    let file = Path::new(&problem.position.file);
    if problem.position.line == 0
        && file.symlink_metadata().is_err()
        && let Some(folder) = file.parent()
    {
        problem.position.file = folder.display().to_string();
    }
    problem.to_string()
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
