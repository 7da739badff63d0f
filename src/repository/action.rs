//! What a client or the command line asks of the repository: load, load all, unload.

use std::sync::Arc;

use super::Overrides;

/// What somebody asks of the repository.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Loads every model there is.
    LoadAll,
    /// Loads or reloads models, and the models they run.
    Load(Vec<(Arc<str>, Overrides)>),
    /// Loads models again that somebody wants already and whose files have changed.
    Refresh(Vec<Arc<str>>),
    /// Takes a model out.
    Unload {
        /// The model.
        name: Arc<str>,
        /// Also unloads the steps that were only loaded for it.
        dependents: bool,
    },
}

impl Action {
    /// Would both come to the same, if nothing happened in between? Loads that bring files or
    /// configs never do.
    pub(super) fn is_same(&self, other: &Action) -> bool {
        match (self, other) {
            (Action::Load(mine), Action::Load(theirs)) => {
                let is_plain = |it: &Overrides| it.config.is_none() && it.files.is_empty();
                let mut brought = mine.iter().chain(theirs).map(|(_, overrides)| overrides);
                let names = |all: &[(Arc<str>, Overrides)]| -> Vec<Arc<str>> {
                    all.iter().map(|(name, _)| name.clone()).collect()
                };
                brought.all(is_plain) && names(mine) == names(theirs)
            }
            (
                Action::Unload { name, dependents },
                Action::Unload { name: other, dependents: with },
            ) => (name, dependents) == (other, with),
            _ => false,
        }
    }
}
