//! The catalog: an immutable snapshot of all models, which gateways read without a lock.

use std::{collections::BTreeMap, sync::Arc};

use super::failure::UNLOADED;
use troupe_base::{
    error::{Error, Result},
    model::Model,
    text::shortened,
};

/// The state of a model's version, as the repository index names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the index's")]
pub enum VersionState {
    Unknown,
    Ready,
    Unavailable,
    Loading,
    Unloading,
}

impl VersionState {
    /// As the repository index spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            VersionState::Unknown => "UNKNOWN",
            VersionState::Ready => "READY",
            VersionState::Unavailable => "UNAVAILABLE",
            VersionState::Loading => "LOADING",
            VersionState::Unloading => "UNLOADING",
        }
    }
}

/// One version of a model as the catalog knows it.
#[derive(Clone)]
pub struct VersionEntry {
    /// `Some` exactly while the state is `Ready`.
    pub model: Option<Arc<Model>>,
    /// Its state.
    pub state: VersionState,
    /// Why it is not ready: a load error, or `unloaded`.
    pub reason: String,
}

/// One name in the repository.
#[derive(Clone, Default)]
pub struct ModelEntry {
    /// By number; empty for a model that nobody tried to load.
    pub versions: BTreeMap<i64, VersionEntry>,
    /// Why there is no version at all, empty if nobody tried to load it.
    pub reason: String,
    /// It has no folder any more.
    pub is_gone: bool,
}

/// Letters of a reason that clients are told: the index has all of it.
const MAX_REASON_CHARS: usize = 500;

/// A reason behind a separator; nothing of what was unloaded.
fn why(reason: &str) -> String {
    if reason.is_empty() || reason == UNLOADED {
        return String::new();
    }
    format!(": {}", shortened(reason, MAX_REASON_CHARS))
}

impl VersionEntry {
    /// Why it is not ready, why no instance of it is up, or why the last load left it as it is.
    pub fn told(&self) -> String {
        let down = self.model.as_ref().and_then(|it| it.why_not());
        match (down, &*self.reason) {
            (Some(down), "") => down,
            (Some(down), reason) => format!("{down}\n{reason}"),
            (None, reason) => reason.to_owned(),
        }
    }

    fn is_same(&self, other: &VersionEntry) -> bool {
        // So that a field that is added cannot be forgotten here.
        let VersionEntry { model, state, reason } = self;
        let address = |it: &Option<Arc<Model>>| it.as_ref().map(Arc::as_ptr);
        (state, reason) == (&other.state, &other.reason) && address(model) == address(&other.model)
    }
}

impl ModelEntry {
    /// Whether readers would see no difference.
    pub(super) fn is_same(&self, other: &ModelEntry) -> bool {
        let ModelEntry { versions, reason, is_gone } = self;
        (is_gone, reason) == (&other.is_gone, &other.reason)
            && versions.len() == other.versions.len()
            && versions.iter().zip(&other.versions).all(|((number, it), (other_number, other))| {
                number == other_number && it.is_same(other)
            })
    }

    /// Whether there is something to show: a folder, or a version that serves, comes or goes.
    pub(super) fn is_there(&self) -> bool {
        let is_gone = |version: &VersionEntry| version.state == VersionState::Unavailable;
        !self.is_gone || !self.versions.values().all(is_gone)
    }

    /// Why it has no version that is ready, behind a separator; nothing of what was unloaded.
    pub fn why_not(&self) -> String {
        if self.versions.values().any(|it| it.state == VersionState::Loading) {
            return ": it is being loaded".to_owned();
        }
        let reasons = self.versions.values().map(|version| &version.reason);
        let mut told = reasons.chain([&self.reason]).filter(|it| !it.is_empty());
        told.next_back().map_or_else(String::new, |it| why(it))
    }

    pub(super) fn ready(&self) -> impl DoubleEndedIterator<Item = &Arc<Model>> {
        self.versions.values().filter_map(|version| version.model.as_ref())
    }
}

/// All names, at one moment.
#[derive(Clone, Default)]
pub struct Catalog {
    /// By name, in order.
    pub entries: BTreeMap<Arc<str>, ModelEntry>,
}

impl Catalog {
    /// The ready version `version`, or the highest ready one for `None`.
    pub fn get(&self, name: &str, version: Option<i64>) -> Result<Arc<Model>> {
        let unknown = || format!("Request for unknown model: '{name}'");
        let entry = self
            .entries
            .get(name)
            .ok_or_else(|| Error::not_found(format!("{} is not found", unknown())))?;
        let Some(number) = version else {
            return entry.ready().next_back().cloned().ok_or_else(|| {
                let why = entry.why_not();
                Error::not_found(format!("{} has no available versions{why}", unknown()))
            });
        };
        let version = entry.versions.get(&number).ok_or_else(|| {
            let there = entry.ready().map(|it| it.version.to_string()).collect::<Vec<_>>();
            let there = match there.is_empty() {
                true => entry.why_not(),
                false => format!(" (ready: {})", there.join(", ")),
            };
            Error::not_found(format!("{} version {number} is not found{there}", unknown()))
        })?;
        version.model.clone().ok_or_else(|| {
            let why = why(&version.reason);
            let text = format!("{} version {number} is not at ready state{why}", unknown());
            Error::unavailable(text)
        })
    }

    /// Ready versions of `name`, ascending.
    pub fn versions(&self, name: &str) -> Vec<Arc<Model>> {
        self.entries.get(name).into_iter().flat_map(ModelEntry::ready).cloned().collect()
    }

    /// Every ready model.
    pub fn ready_models(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.entries.values().flat_map(ModelEntry::ready)
    }

    /// Strict readiness: every version is ready and able to run, or was unloaded on purpose. A
    /// version that fails beside one that serves is no reason: it came with a reload.
    pub fn is_ready(&self) -> bool {
        self.entries.values().all(|entry| {
            let is_tried = !entry.versions.is_empty();
            let serves = entry.ready().next().is_some();
            (is_tried || entry.reason.is_empty())
                && entry.versions.values().all(|version| match &version.model {
                    Some(model) => model.is_ready(),
                    None => serves || version.reason == UNLOADED,
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_the_same_only_if_readers_see_no_difference() {
        let entry = |number: i64, state: VersionState, reason: &str| {
            let version = VersionEntry { model: None, state, reason: reason.to_owned() };
            ModelEntry { versions: [(number, version)].into(), ..ModelEntry::default() }
        };
        let failed = |number: i64| entry(number, VersionState::Unavailable, "no file");
        let all = [
            ModelEntry::default(),
            ModelEntry { is_gone: true, ..ModelEntry::default() },
            ModelEntry { reason: "no config".to_owned(), ..ModelEntry::default() },
            failed(1),
            failed(2),
            entry(1, VersionState::Loading, "no file"),
            entry(1, VersionState::Unavailable, UNLOADED),
            ModelEntry { is_gone: true, ..failed(1) },
        ];
        for (index, one) in all.iter().enumerate() {
            for (other_index, other) in all.iter().enumerate() {
                assert_eq!(one.is_same(other), index == other_index, "{index} {other_index}");
            }
        }
    }
}
