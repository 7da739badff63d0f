//! What the repository remembers of one model: who wants it, what it is made of, what became of it.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    catalog::{ModelEntry, VersionEntry, VersionState},
    definition::Definition,
    graph::{Needed, Upstream},
    scan::Stamp,
};
use troupe_base::{
    config::{Problem, join_messages},
    model::Model,
};

/// The reason of versions that were taken out on purpose; readiness and clients look for it.
pub(super) const UNLOADED: &str = "unloaded";

/// How the reason begins of a model without a version to load.
pub(super) const NO_VERSION: &str = "at least one version must be available";

/// Who asked for a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nobody, or it was unloaded since.
    #[default]
    No,
    /// An ensemble that runs it.
    Implicitly,
    /// A client, or the command line.
    Explicitly,
}

/// Why a model could not be had.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Failure {
    /// In no repository.
    Missing,
    /// In several repositories.
    Duplicate,
    /// Its config cannot be used.
    Unreadable(Vec<Problem>),
    /// An ensemble that cannot be made of its steps.
    Invalid(String),
    /// The config or the files of the load request cannot be used.
    Refused(String),
    /// It did not come up.
    NotLoaded(String),
}

impl Failure {
    /// What the index shows.
    pub(super) fn reason(&self) -> String {
        match self {
            Failure::Missing => "model is not found in any repository".to_owned(),
            Failure::Duplicate => "model appears in two or more repositories".to_owned(),
            Failure::Unreadable(problems) => join_messages(problems),
            Failure::Invalid(text) | Failure::Refused(text) | Failure::NotLoaded(text) => {
                text.clone()
            }
        }
    }
}

/// A version that serves.
#[derive(Clone)]
pub(super) struct Loaded {
    /// Of the model's folder and of the version's, when it was loaded.
    pub(super) stamp: (Stamp, Stamp),
    /// Answers requests.
    pub(super) model: Arc<Model>,
}

/// One name.
#[derive(Clone, Default)]
pub(super) struct Node {
    /// Should it serve?
    pub(super) wanted: Wanted,
    /// What was last found on disk, or came with the last load request.
    pub(super) definition: Option<Arc<Definition>>,
    /// Versions that serve.
    pub(super) loaded: BTreeMap<i64, Loaded>,
    /// Versions that do not, and why.
    pub(super) down: BTreeMap<i64, String>,
    /// Why the last attempt failed, even if an older one still serves.
    pub(super) failure: Option<Failure>,
}

impl Node {
    /// The steps, if it is an ensemble.
    pub(super) fn needed(&self) -> &[Needed] {
        self.definition.as_ref().map_or(&[], |it| it.needed())
    }

    /// The models its versions run right now, which may not be those it needs next.
    pub(super) fn running(&self) -> impl Iterator<Item = Arc<str>> {
        let steps = self.loaded.values().flat_map(|it| &it.model.steps);
        steps.map(|it| it.name().clone())
    }

    /// Somebody asked for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted != Wanted::No
    }

    /// What readers see of it; nothing if there is no such model.
    pub(super) fn entry(&self) -> Option<ModelEntry> {
        let mut entry = ModelEntry::default();
        for (number, reason) in &self.down {
            let (state, reason) = (VersionState::Unavailable, reason.clone());
            entry.versions.insert(*number, VersionEntry { model: None, state, reason });
        }
        for (number, loaded) in &self.loaded {
            let (state, reason) = (VersionState::Ready, String::new());
            let model = Some(loaded.model.clone());
            entry.versions.insert(*number, VersionEntry { model, state, reason });
        }
        if let (true, Some(failure)) = (entry.versions.is_empty(), &self.failure) {
            if *failure == Failure::Missing {
                return None;
            }
            entry.reason = failure.reason();
        }
        Some(entry)
    }

    /// What ensembles see of it.
    pub(super) fn upstream(&self) -> Upstream {
        if !self.loaded.is_empty() {
            return Upstream::Loaded(self.loaded.keys().copied().collect());
        }
        match &self.failure {
            Some(Failure::Missing | Failure::Duplicate) => Upstream::Missing,
            Some(Failure::Unreadable(problems)) => Upstream::Invalid(join_messages(problems)),
            Some(Failure::Invalid(text)) => Upstream::Invalid(text.clone()),
            Some(Failure::Refused(text) | Failure::NotLoaded(text)) => {
                Upstream::NotLoaded(Some(text.clone()))
            }
            None => Upstream::NotLoaded(None),
        }
    }

    /// Takes all versions out, for `reason`.
    pub(super) fn take_down(&mut self, reason: &str) {
        let taken = std::mem::take(&mut self.loaded);
        let numbers = self.down.keys().chain(taken.keys()).copied();
        self.down = numbers.map(|it| (it, reason.to_owned())).collect();
    }
}
