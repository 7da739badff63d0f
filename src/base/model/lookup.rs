//! Lookup of other models for a model that calls them; the repository implements it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use futures_util::future::BoxFuture;

use super::Model;
use crate::error::Result;

/// What a load may replace.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// A ModelConfig as JSON, instead of the one on disk.
    pub config: Option<String>,
    /// `path → contents`, relative to the model's folder (the key without its `file:` prefix).
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Finds, loads and unloads other models for a model. Holds none of them alive.
pub trait Lookup: Send + Sync + fmt::Debug {
    /// The ready version `version`, or the highest ready one for `None`.
    fn find(&self, name: &str, version: Option<i64>) -> Result<Arc<Model>>;

    /// Loads or reloads a model; ends once it is ready. Runs to its end even if nobody waits, on
    /// any runtime.
    fn load(&self, target: LoadTarget, overrides: Overrides) -> BoxFuture<'static, Result<()>>;

    /// Takes a model out; with `dependents` also the steps only it had loaded.
    fn unload(&self, target: LoadTarget, dependents: bool) -> BoxFuture<'static, Result<()>>;
}

/// Which model is to be loaded or unloaded.
#[derive(Clone, Debug)]
pub struct LoadTarget {
    /// Its name.
    pub name: String,
    /// The model that waits for it before it is loaded itself.
    pub within: Option<Arc<str>>,
}
