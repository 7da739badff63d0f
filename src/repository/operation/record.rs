//! The record of one model: who wants it, what it is made of, which versions are loaded.

use std::{collections::BTreeMap, sync::Arc};

use super::requirements::StepStatus;
use crate::{
    catalog::{ModelEntry, VersionEntry, VersionState},
    disk::definition::{Definition, RequiredModel, VersionStamp},
    failure::{LoadFailure, UNLOADED},
};
use troupe_base::{config::join_messages, model::Model};

/// How the reason begins of a version that stays although its files were refused since.
const REFUSED_FILES: &str = "the last load failed";
/// How it goes on where that version can run.
const SERVES_ON: &str = ", what was loaded before serves on";

/// Who asked for a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Nobody, or it was unloaded since.
    #[default]
    None,
    /// An ensemble that runs it.
    Implicit,
    /// A client, or the command line.
    Explicit,
}

/// A version that serves.
#[derive(Clone)]
pub(crate) struct LoadedVersion {
    /// As of when it was loaded.
    pub(crate) stamp: VersionStamp,
    /// Answers requests.
    pub(crate) model: Arc<Model>,
}

/// Versions that were opened.
pub(crate) type OpenedVersions = Vec<(i64, Arc<Model>)>;

/// Records of models by name.
pub(crate) type Records = BTreeMap<Arc<str>, ModelRecord>;

/// What the repository remembers of one model.
#[derive(Clone, Default)]
pub(crate) struct ModelRecord {
    /// Whether it should serve, and for whom.
    pub(crate) demand: Demand,
    /// What was last found on disk, or came with the last load request.
    pub(crate) definition: Option<Arc<Definition>>,
    /// Versions that serve.
    pub(crate) loaded: BTreeMap<i64, LoadedVersion>,
    /// Versions that do not, and why.
    pub(crate) unavailable: BTreeMap<i64, String>,
    /// Why the last attempt failed, even if an older one still serves.
    pub(crate) failure: Option<LoadFailure>,
}

impl ModelRecord {
    /// The models it runs by its newest config; none unless it is an ensemble.
    pub(crate) fn required(&self) -> &[RequiredModel] {
        self.definition.as_ref().map_or(&[], |definition| definition.required())
    }

    /// The models its versions run right now, which may not be those it needs next.
    pub(crate) fn running(&self) -> impl Iterator<Item = Arc<str>> {
        let steps = self.loaded.values().flat_map(|version| &version.model.steps);
        steps.map(|step| step.name().clone())
    }

    /// Somebody asked for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.demand != Demand::None
    }

    /// Its definition, if a load request brought it.
    pub(crate) fn override_definition(&self) -> Option<Arc<Definition>> {
        self.definition.clone().filter(|definition| definition.is_override)
    }

    /// What readers see of it; nothing if there is no such model.
    pub(crate) fn entry(&self) -> Option<ModelEntry> {
        let mut entry = ModelEntry::default();
        for (number, reason) in &self.unavailable {
            let (state, reason) = (VersionState::Unavailable, reason.clone());
            entry.versions.insert(*number, VersionEntry { model: None, state, reason });
        }
        for (number, loaded) in &self.loaded {
            let (state, reason) = (VersionState::Ready, self.refused(&loaded.model));
            let model = Some(loaded.model.clone());
            entry.versions.insert(*number, VersionEntry { model, state, reason });
        }
        if let (true, Some(failure)) = (entry.versions.is_empty(), &self.failure) {
            if *failure == LoadFailure::Missing {
                return None;
            }
            entry.reason = failure.reason();
        }
        Some(entry)
    }

    /// Why what is on disk now does not serve, while what was loaded before does.
    fn refused(&self, model: &Model) -> String {
        let serves_on = if model.is_ready() { SERVES_ON } else { "" };
        let told =
            |failure: &LoadFailure| format!("{REFUSED_FILES}{serves_on}: {}", failure.reason());
        self.failure.as_ref().map(told).unwrap_or_default()
    }

    /// What ensembles that run it see of it.
    pub(crate) fn status(&self) -> StepStatus {
        if !self.loaded.is_empty() {
            return StepStatus::Loaded(self.loaded.keys().copied().collect());
        }
        match &self.failure {
            Some(LoadFailure::Missing | LoadFailure::Duplicate) => StepStatus::Missing,
            Some(LoadFailure::Unreadable(problems)) => StepStatus::Invalid(join_messages(problems)),
            Some(LoadFailure::Invalid(text)) => StepStatus::Invalid(text.clone()),
            Some(
                LoadFailure::Refused(text)
                | LoadFailure::Unfit(text)
                | LoadFailure::NotLoaded(text),
            ) => StepStatus::NotLoaded(Some(text.clone())),
            None => StepStatus::NotLoaded(None),
        }
    }

    /// Puts opened versions in place; those that the definition no longer picks end.
    pub(crate) fn replace(&mut self, definition: &Definition, opened: OpenedVersions) {
        self.failure = None;
        for (number, model) in opened {
            if let Some(stamp) = definition.stamp_of(number) {
                self.loaded.insert(number, LoadedVersion { stamp, model });
            }
        }
        let is_picked = |number: &i64| definition.versions.contains_key(number);
        let loaded = self.loaded.keys().copied();
        let dropped: Vec<i64> = loaded.filter(|number| !is_picked(number)).collect();
        self.loaded.retain(|number, _| is_picked(number));
        self.unavailable.retain(|number, reason| reason == UNLOADED && !is_picked(number));
        self.unavailable.extend(dropped.iter().map(|number| (*number, UNLOADED.to_owned())));
        self.unavailable
            .retain(|number, _| definition.is_override || definition.present.contains(number));
    }

    /// Takes all versions out, for `reason`.
    pub(crate) fn unload_all(&mut self, reason: &str) {
        let loaded = std::mem::take(&mut self.loaded);
        let numbers = self.unavailable.keys().chain(loaded.keys()).copied();
        self.unavailable = numbers.map(|number| (number, reason.to_owned())).collect();
    }
}
