//! Opens those versions of a model that changed since they were loaded: all of them, or none.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::{
    open::{ModelPlace, OpenModel, parts},
    publish::Publisher,
    record::{LoadedVersion, ModelRecord, OpenedVersions},
    requirements::{StepStatus, unmet},
};
use crate::{
    Settings,
    disk::definition::{Definition, VersionStamp},
    failure::{LoadFailure, UNLOADED},
};
use troupe_base::{
    config::ModelConfig,
    error::{Error, Result},
    model::{Model, ModelParts},
};

/// What every operation works with, all on the repository's thread.
pub(crate) struct LoadContext {
    /// Where models are and how they are loaded.
    pub(crate) settings: Arc<Settings>,
    /// Makes models answer.
    pub(crate) opener: Box<dyn OpenModel>,
    /// Shows what became of them.
    pub(crate) publisher: Publisher,
    /// One per version that loads at the same time.
    pub(crate) permits: Arc<Semaphore>,
}

/// A model as the ensembles that run it see it.
#[derive(Clone)]
pub(super) struct StepModels {
    /// What to say about it.
    pub(super) status: StepStatus,
    /// Versions that serve.
    pub(super) models: BTreeMap<i64, Arc<Model>>,
}

impl StepModels {
    /// Of a model's record.
    pub(super) fn of(record: &ModelRecord) -> StepModels {
        let models = record.loaded.iter();
        let models = models.map(|(number, loaded)| (*number, loaded.model.clone())).collect();
        StepModels { status: record.status(), models }
    }

    /// Whether this very model is one of its versions.
    pub(super) fn serves(&self, model: &Arc<Model>) -> bool {
        self.models.values().any(|version| Arc::ptr_eq(version, model))
    }

    fn version(&self, number: i64) -> Option<&Arc<Model>> {
        version_of(&self.models, number)
    }
}

/// What an ensemble means by a version; -1: the latest.
pub(super) fn version_of<T>(versions: &BTreeMap<i64, T>, number: i64) -> Option<&T> {
    match number {
        -1 => versions.values().next_back(),
        number => versions.get(&number),
    }
}

/// The models an ensemble runs, now or next, by name.
pub(super) type StepsByName = BTreeMap<Arc<str>, StepModels>;

/// Why nothing was opened; where the versions had different reasons, these too.
pub(super) struct OpenFailure {
    pub(super) failure: LoadFailure,
    pub(super) versions: BTreeMap<i64, String>,
}

impl From<LoadFailure> for OpenFailure {
    fn from(failure: LoadFailure) -> OpenFailure {
        OpenFailure { failure, versions: BTreeMap::new() }
    }
}

/// Opens the changed versions of a model that its backend runs, side by side.
pub(super) async fn open_single(
    context: &LoadContext,
    record: &ModelRecord,
    definition: &Arc<Definition>,
    ensemble: Option<&Arc<str>>,
) -> Result<OpenedVersions, OpenFailure> {
    // Whoever loads it wants it to run, or to hear why not.
    let is_down = |loaded: &LoadedVersion| !loaded.model.health.is_ready();
    let changed = changed_versions(record, definition, is_down);
    if changed.is_empty() {
        return Ok(Vec::new());
    }
    let open = |number: &i64| scale_or_open(context, record, definition, *number, ensemble);
    let opened = changed.iter().map(open);
    let opened = join_all(opened).await;
    all_or_none(changed.into_iter().zip(opened).collect())
}

/// What is known of an ensemble beside its definition.
#[derive(Clone, Copy)]
pub(super) struct EnsembleSurroundings<'a> {
    /// Why it depends on itself, if it does.
    pub(super) cycle: Option<&'a str>,
    /// The models it runs.
    pub(super) steps: &'a StepsByName,
    /// The outermost ensemble around it, if that alone runs it.
    pub(super) around: Option<&'a Arc<str>>,
}

/// Opens the changed versions of an ensemble.
pub(super) async fn open_ensemble(
    context: &LoadContext,
    record: &ModelRecord,
    definition: &Arc<Definition>,
    config: &Arc<ModelConfig>,
    EnsembleSurroundings { cycle, steps, around }: EnsembleSurroundings<'_>,
) -> Result<OpenedVersions, Vec<String>> {
    if let Some(cycle) = cycle {
        return Err(vec![config.source_map.problem("ensemble_scheduling", cycle).message()]);
    }
    let required = definition.required();
    let status_of =
        |name: &str| steps.get(name).map_or(StepStatus::Missing, |step| step.status.clone());
    unmet_steps(context, definition, config, &status_of)?;
    let models = required.iter().filter_map(|step| steps.get(&step.model)?.version(step.version));
    let models: Vec<_> = models.cloned().collect();
    let runs_others = |loaded: &LoadedVersion| !are_same(&loaded.model.steps, &models);
    let mut opened = Vec::new();
    for number in changed_versions(record, definition, runs_others) {
        let same = record.loaded.get(&number).filter(|it| !runs_others(it));
        if let Some(scaled) = scale(context, same, definition, number).await {
            let () = scaled.map_err(|error| vec![error.to_string()])?;
            opened.extend(same.map(|it| (number, it.model.clone())));
            continue;
        }
        context.publisher.show_loading(&[(&definition.name, number)]);
        let parts = ModelParts { steps: models.clone(), ..parts(config.clone(), number) };
        let made = context.opener.ensemble(definition.clone(), parts, around.cloned());
        opened.push((number, made.await?));
    }
    Ok(opened)
}

/// Fails with everything that an ensemble lacks of its steps.
pub(super) fn unmet_steps(
    context: &LoadContext,
    definition: &Definition,
    config: &ModelConfig,
    status_of: &dyn Fn(&str) -> StepStatus,
) -> Result<(), Vec<String>> {
    let known: Vec<Arc<str>> = context.publisher.catalog.load().entries.keys().cloned().collect();
    let problems = unmet(&definition.name, definition.required(), &known, status_of);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.iter().map(|unmet| unmet.problem(config).message()).collect()),
    }
}

/// The versions of the definition that are not loaded, or whose files differ, or that are outdated.
fn changed_versions(
    record: &ModelRecord,
    definition: &Definition,
    is_outdated: impl Fn(&LoadedVersion) -> bool,
) -> Vec<i64> {
    let is_loaded = |number: &i64| {
        let stamp = definition.stamp_of(*number);
        let loaded = record.loaded.get(number);
        loaded.is_some_and(|loaded| Some(loaded.stamp) == stamp && !is_outdated(loaded))
    };
    definition.versions.keys().copied().filter(|number| !is_loaded(number)).collect()
}

/// Opens a version, unless its config means the same, or all that has changed is how many instances it
/// is to have.
async fn scale_or_open(
    context: &LoadContext,
    record: &ModelRecord,
    definition: &Arc<Definition>,
    version: i64,
    ensemble: Option<&Arc<str>>,
) -> Result<Arc<Model>> {
    let loaded = record.loaded.get(&version).filter(|it| it.model.health.is_ready());
    if let Some(LoadedVersion { model, .. }) = loaded
        && let Some(scaled) = scale(context, loaded, definition, version).await
    {
        return scaled.map(|()| model.clone());
    }
    open_with_retries(context, definition, version, ensemble).await
}

/// Gives the version that serves, if its files are still the same, the instances that it is to have;
/// `None` if that takes another load.
async fn scale(
    context: &LoadContext,
    loaded: Option<&LoadedVersion>,
    definition: &Arc<Definition>,
    version: i64,
) -> Option<Result<()>> {
    let files = |it: VersionStamp| (it.files, it.version);
    let stamp = definition.stamp_of(version).map(files);
    let loaded = loaded.filter(|it| stamp == Some(files(it.stamp)))?;
    context.opener.scale(definition.clone(), loaded.model.clone()).await
}

async fn open_with_retries(
    context: &LoadContext,
    definition: &Arc<Definition>,
    version: i64,
    ensemble: Option<&Arc<str>>,
) -> Result<Arc<Model>> {
    let name = &definition.name;
    let mut retries = context.settings.retry_count;
    loop {
        let permit = context.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Error::unavailable("models are not loaded any more"))?;
        tracing::info!("loading `{name}` version {version}");
        let place = ModelPlace { ensemble: ensemble.cloned(), permit };
        match context.opener.single(definition.clone(), version, place).await {
            Err(error) if 0 < retries => {
                tracing::warn!("loading `{name}` version {version} again, it failed: {error}");
                retries -= 1;
            }
            result => return result,
        }
    }
}

/// A model is updated as one: where one version fails, the others are dropped.
fn all_or_none(results: Vec<(i64, Result<Arc<Model>>)>) -> Result<OpenedVersions, OpenFailure> {
    let mut opened = Vec::new();
    let mut versions = BTreeMap::new();
    let mut text = String::new();
    for (number, result) in results {
        match result {
            Ok(model) => opened.push((number, model)),
            Err(error) => {
                text += &format!("version {number} is at UNAVAILABLE state: {error};");
                versions.insert(number, error.to_string());
            }
        }
    }
    if versions.is_empty() {
        return Ok(opened);
    }
    versions.extend(opened.iter().map(|(number, _)| (*number, UNLOADED.to_owned())));
    Err(OpenFailure { failure: LoadFailure::NotLoaded(text), versions })
}

fn are_same(a: &[Arc<Model>], b: &[Arc<Model>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}
