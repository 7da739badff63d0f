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
                let is_plain =
                    |(_, it): &(Arc<str>, Overrides)| it.config.is_none() && it.files.is_empty();
                let is_like = |(mine, theirs): (&(Arc<str>, Overrides), &(Arc<str>, Overrides))| {
                    mine.0 == theirs.0 && is_plain(mine) && is_plain(theirs)
                };
                mine.len() == theirs.len() && mine.iter().zip(theirs).all(is_like)
            }
            (
                Action::Unload { name, dependents },
                Action::Unload { name: other, dependents: with },
            ) => (name, dependents) == (other, with),
            _ => false,
        }
    }
}
