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
