//! Reconciles one model with what is wanted of it and what is on disk: loads, reloads, unloads it,
//! or leaves it as it is.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use super::{
    record::{ModelRecord, OpenedVersions},
    versions::{self, EnsembleSurroundings, LoadContext, OpenFailure, StepModels, StepsByName},
};
use crate::{
    disk::definition::{Content, Definition, no_version},
    failure::{LoadFailure, UNLOADED},
};
use troupe_base::{config::join_texts, model::Model};

/// What is known of a model beside its record.
pub(super) struct ReconcileInput {
    /// The model.
    pub(super) name: Arc<str>,
    /// What was found on disk, if this operation looked.
    pub(super) found: Option<Result<Arc<Definition>, LoadFailure>>,
    /// Why it depends on itself, if it does.
    pub(super) cycle: Option<String>,
    /// The only ensemble that runs it, or the one around that.
    pub(super) ensemble: Option<Arc<str>>,
    /// The models it runs, now or next.
    pub(super) steps: StepsByName,
    /// Ensembles that serve run it: it is not replaced before they were asked.
    pub(super) is_guarded: bool,
}

/// What one model's turn came to.
pub(super) enum Turn {
    Done(ReconcileOutcome),
    /// It is open, and not in place yet.
    Opened(Box<Replacement>),
}

/// What became of a model.
pub(super) struct ReconcileOutcome {
    /// Whether it is as it should be.
    pub(super) result: Result<(), LoadFailure>,
    /// Versions that were loaded.
    pub(super) loaded: Vec<i64>,
    /// This operation looked at its files.
    pub(super) is_read: bool,
    /// Something has changed or was asked for, so that the log says it.
    pub(super) is_notable: bool,
    /// Versions that were taken out; requests may still run on them.
    pub(super) unloaded: Vec<(i64, Weak<Model>)>,
    /// When this model's turn came.
    pub(super) begun: Instant,
}

/// A model before its turn.
struct Before {
    begun: Instant,
    failure: Option<LoadFailure>,
    loaded: Vec<(i64, Weak<Model>)>,
}

impl Before {
    fn of(record: &ModelRecord) -> Before {
        let models = record.loaded.iter();
        let loaded = models.map(|(number, loaded)| (*number, Arc::downgrade(&loaded.model)));
        Before { begun: Instant::now(), failure: record.failure.clone(), loaded: loaded.collect() }
    }

    fn outcome(
        self,
        input: &ReconcileInput,
        record: &ModelRecord,
        attempt: Result<Vec<i64>, LoadFailure>,
    ) -> ReconcileOutcome {
        let Before { begun, failure, loaded: mut unloaded } = self;
        unloaded.retain(|(number, _)| !record.loaded.contains_key(number));
        let loaded = attempt.as_ref().map_or(Vec::new(), Clone::clone);
        let result = attempt.map(|_| ());
        let is_read = input.found.is_some();
        let is_notable = is_read || !loaded.is_empty() || result.as_ref().err() != failure.as_ref();
        ReconcileOutcome { result, loaded, is_read, is_notable, unloaded, begun }
    }
}

/// Opened versions that ensembles which serve would run in place of others.
pub(super) struct Replacement {
    before: Before,
    input: ReconcileInput,
    opened: OpenedDefinition,
}

impl Replacement {
    /// What the ensembles would see.
    pub(super) fn preview(&self, record: &ModelRecord) -> StepModels {
        let mut record = record.clone();
        record.replace(&self.opened.definition, self.opened.versions.clone());
        StepModels::of(&record)
    }

    /// Puts it in place.
    pub(super) fn commit(
        self,
        context: &LoadContext,
        record: &mut ModelRecord,
    ) -> ReconcileOutcome {
        let Replacement { before, input, opened } = self;
        let numbers = succeed(context, record, opened);
        before.outcome(&input, record, Ok(numbers))
    }

    /// Leaves what serves as it is, for this reason.
    pub(super) fn refuse(
        self,
        context: &LoadContext,
        record: &mut ModelRecord,
        reason: String,
    ) -> ReconcileOutcome {
        let Replacement { before, input, opened } = self;
        let failed = LoadFailure::Unfit(reason).into();
        let failure = opened.fail(context, &input, record, failed);
        before.outcome(&input, record, Err(failure))
    }
}

/// A definition whose changed versions are open.
struct OpenedDefinition {
    definition: Arc<Definition>,
    /// The one before it.
    before: Option<Arc<Definition>>,
    versions: OpenedVersions,
}

impl OpenedDefinition {
    fn fail(
        self,
        context: &LoadContext,
        input: &ReconcileInput,
        record: &mut ModelRecord,
        failed: OpenFailure,
    ) -> LoadFailure {
        let failure = fail(context, input, record, failed);
        // What a client brought and failed is not tried again by itself.
        if self.definition.is_override {
            record.definition = self.before;
        }
        failure
    }
}

/// Loads, reloads, unloads, or leaves a model as it is.
pub(super) async fn reconcile(
    context: &LoadContext,
    input: ReconcileInput,
    record: &mut ModelRecord,
) -> Turn {
    let before = Before::of(record);
    let attempt = match apply(context, &input, record).await {
        Ok(Applied::Opened(opened)) if input.is_guarded && is_replaced(record, &opened) => {
            return Turn::Opened(Box::new(Replacement { before, input, opened }));
        }
        Ok(Applied::Opened(opened)) => Ok(succeed(context, record, opened)),
        Ok(Applied::Left) => Ok(Vec::new()),
        Err(failure) => Err(failure),
    };
    Turn::Done(before.outcome(&input, record, attempt))
}

/// Whether versions that serve would be other ones, or none.
fn is_replaced(record: &ModelRecord, opened: &OpenedDefinition) -> bool {
    let is_picked = |number: &i64| opened.definition.versions.contains_key(number);
    !record.loaded.is_empty()
        && (!opened.versions.is_empty() || !record.loaded.keys().all(is_picked))
}

/// What was done about a model.
enum Applied {
    /// Nothing, or it was unloaded.
    Left,
    /// All that changed is open.
    Opened(OpenedDefinition),
}

/// Opens what is wanted and has changed.
async fn apply(
    context: &LoadContext,
    input: &ReconcileInput,
    record: &mut ModelRecord,
) -> Result<Applied, LoadFailure> {
    let definition = match (&input.found, &record.definition) {
        // A mistake in one client's request changes nothing for others.
        (Some(Err(failure @ LoadFailure::Refused(_))), _) => return Err(failure.clone()),
        (Some(Err(LoadFailure::Missing)), _) => {
            record.failure = Some(LoadFailure::Missing);
            context.publisher.show(&input.name, record.entry());
            return Err(LoadFailure::Missing);
        }
        _ if !record.is_wanted() => {
            unload(context, input, record);
            return Ok(Applied::Left);
        }
        (Some(Err(failure)), _) => {
            return Err(fail(context, input, record, failure.clone().into()));
        }
        (Some(Ok(definition)), _) => definition.clone(),
        (None, Some(definition)) => definition.clone(),
        (None, None) => return record.failure.clone().map_or(Ok(Applied::Left), Err),
    };
    let before = record.definition.replace(definition.clone());
    let attempt = match &definition.content {
        // Only its own files can change what became of it.
        Content::Single(_) if input.found.is_none() => {
            return record.failure.clone().map_or(Ok(Applied::Left), Err);
        }
        _ if definition.versions.is_empty() => {
            Err(LoadFailure::NotLoaded(no_version(&definition)).into())
        }
        Content::Single(_) => {
            versions::open_single(context, record, &definition, input.ensemble.as_ref()).await
        }
        Content::Ensemble(config, _) => {
            let surroundings = EnsembleSurroundings {
                cycle: input.cycle.as_deref(),
                steps: &input.steps,
                around: input.ensemble.as_ref(),
            };
            versions::open_ensemble(context, record, &definition, config, surroundings)
                .await
                .map_err(|problems| LoadFailure::Invalid(join_texts(problems.into_iter())).into())
        }
    };
    let opened = OpenedDefinition { definition, before, versions: Vec::new() };
    match attempt {
        Ok(versions) => Ok(Applied::Opened(OpenedDefinition { versions, ..opened })),
        Err(failed) => Err(opened.fail(context, input, record, failed)),
    }
}

/// The opened versions serve; which of them are others than before.
fn succeed(context: &LoadContext, record: &mut ModelRecord, opened: OpenedDefinition) -> Vec<i64> {
    let OpenedDefinition { definition, versions, .. } = opened;
    let is_new = |(number, model): &&(i64, Arc<Model>)| {
        record.loaded.get(number).is_none_or(|loaded| !Arc::ptr_eq(&loaded.model, model))
    };
    let numbers = versions.iter().filter(is_new).map(|(number, _)| *number).collect();
    hand_sequences_over(record, &definition, &versions);
    record.replace(&definition, versions);
    context.publisher.show(&definition.name, record.entry());
    numbers
}

/// Sequences that have begun go on where they are: whoever is asked for them from now on is told. Those
/// of a version that goes are known to the highest one that comes.
fn hand_sequences_over(
    record: &ModelRecord,
    definition: &Definition,
    opened: &[(i64, Arc<Model>)],
) {
    for (number, loaded) in &record.loaded {
        let same = opened.iter().find(|(it, _)| it == number);
        let goes = !definition.versions.contains_key(number);
        let highest = || opened.iter().filter(|_| goes).max_by_key(|(it, _)| *it);
        // One that was scaled is still the same.
        if let Some((_, heir)) = same.or_else(highest)
            && !Arc::ptr_eq(heir, &loaded.model)
        {
            heir.succeed(&loaded.model);
        }
    }
}

/// What serves goes on serving, unless it is an ensemble that lost a model.
fn fail(
    context: &LoadContext,
    input: &ReconcileInput,
    record: &mut ModelRecord,
    failed: OpenFailure,
) -> LoadFailure {
    let OpenFailure { failure, mut versions } = failed;
    let reason = failure.reason();
    if !matches!(failure, LoadFailure::NotLoaded(_)) {
        let known = record.definition.iter().flat_map(|definition| definition.versions.keys());
        versions.extend(known.map(|number| (*number, reason.clone())));
    }
    if !is_intact(record, &input.steps) {
        record.unload_all(&reason);
    }
    let loaded = &record.loaded;
    record.unavailable.retain(|number, reason| reason == UNLOADED || loaded.contains_key(number));
    versions.retain(|number, _| !loaded.contains_key(number));
    record.unavailable.extend(versions);
    record.failure = Some(failure.clone());
    context.publisher.show(&input.name, record.entry());
    failure
}

fn unload(context: &LoadContext, input: &ReconcileInput, record: &mut ModelRecord) {
    if record.loaded.is_empty() && record.unavailable.is_empty() && record.failure.is_none() {
        return;
    }
    record.unload_all(UNLOADED);
    record.failure = None;
    context.publisher.show(&input.name, record.entry());
}

/// Whether an ensemble that serves runs only models that still serve.
fn is_intact(record: &ModelRecord, steps: &StepsByName) -> bool {
    let is_served = |step: &Arc<Model>| {
        let served = steps.get(step.name());
        served.is_some_and(|step_models| step_models.serves(step))
    };
    record.loaded.values().flat_map(|loaded| &loaded.model.steps).all(is_served)
}
