//! Reconciles one model with what is wanted of it and what is on disk: loads, reloads, unloads it,
//! or leaves it as it is.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use super::{
    record::{LoadedVersion, ModelRecord},
    versions::{self, LoadContext, OpenFailure, OpenedVersions, StepsByName},
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
    /// The models it runs, now or next.
    pub(super) steps: StepsByName,
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

/// Loads, reloads, unloads, or leaves a model as it is.
pub(super) async fn reconcile(
    context: &LoadContext,
    input: ReconcileInput,
    record: &mut ModelRecord,
) -> ReconcileOutcome {
    let (begun, failure_before) = (Instant::now(), record.failure.clone());
    let models = record.loaded.iter();
    let mut unloaded: Vec<_> =
        models.map(|(number, loaded)| (*number, Arc::downgrade(&loaded.model))).collect();
    let attempt = apply(context, &input, record).await;
    unloaded.retain(|(number, _)| !record.loaded.contains_key(number));
    let loaded = attempt.as_ref().map_or(Vec::new(), Clone::clone);
    let result = attempt.map(|_| ());
    let is_read = input.found.is_some();
    let is_notable =
        is_read || !loaded.is_empty() || result.as_ref().err() != failure_before.as_ref();
    ReconcileOutcome { result, loaded, is_read, is_notable, unloaded, begun }
}

/// The versions that were loaded.
async fn apply(
    context: &LoadContext,
    input: &ReconcileInput,
    record: &mut ModelRecord,
) -> Result<Vec<i64>, LoadFailure> {
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
            return Ok(Vec::new());
        }
        (Some(Err(failure)), _) => {
            return Err(fail(context, input, record, failure.clone().into()));
        }
        (Some(Ok(definition)), _) => definition.clone(),
        (None, Some(definition)) => definition.clone(),
        (None, None) => return record.failure.clone().map_or(Ok(Vec::new()), Err),
    };
    let before = record.definition.replace(definition.clone());
    let attempt = match &definition.content {
        // Only its own files can change what became of it.
        Content::Single(_) if input.found.is_none() => {
            return record.failure.clone().map_or(Ok(Vec::new()), Err);
        }
        _ if definition.versions.is_empty() => {
            Err(LoadFailure::NotLoaded(no_version(&definition)).into())
        }
        Content::Single(_) => versions::open_single(context, record, &definition).await,
        Content::Ensemble(config, _) => {
            let (cycle, steps) = (input.cycle.as_deref(), &input.steps);
            versions::open_ensemble(context, record, &definition, config, cycle, steps)
                .await
                .map_err(|problems| LoadFailure::Invalid(join_texts(problems.into_iter())).into())
        }
    };
    match attempt {
        Ok(opened) => Ok(succeed(context, record, &definition, opened)),
        Err(failed) => {
            let failure = fail(context, input, record, failed);
            // What a client brought and failed is not tried again by itself.
            if definition.is_override {
                record.definition = before;
            }
            Err(failure)
        }
    }
}

/// The opened versions serve; those that the definition no longer picks end.
fn succeed(
    context: &LoadContext,
    record: &mut ModelRecord,
    definition: &Definition,
    opened: OpenedVersions,
) -> Vec<i64> {
    let numbers = opened.iter().map(|(number, _)| *number).collect();
    record.failure = None;
    for (number, model) in opened {
        if let Some(stamp) = definition.stamp_of(number) {
            record.loaded.insert(number, LoadedVersion { stamp, model });
        }
    }
    let is_picked = |number: &i64| definition.versions.contains_key(number);
    let numbers_of_loaded = record.loaded.keys().copied();
    let dropped: Vec<i64> = numbers_of_loaded.filter(|number| !is_picked(number)).collect();
    record.loaded.retain(|number, _| is_picked(number));
    record.unavailable.retain(|number, reason| reason == UNLOADED && !is_picked(number));
    record.unavailable.extend(dropped.iter().map(|number| (*number, UNLOADED.to_owned())));
    context.publisher.show(&definition.name, record.entry());
    numbers
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
