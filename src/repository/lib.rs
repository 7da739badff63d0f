//! The repository of models: scans their folders, loads and unloads them, publishes the catalog.
//!
//! A load goes this way:
//!
//! 1. [`Control::load`], which `control` implements, sends the action to the repository's actor.
//! 2. `actor` reads the disk on a blocking thread (`disk::snapshot`, one `disk::definition` for
//!    each model) and locks the models that the load may touch (`locks`). Operations on related
//!    models run one after another, others side by side.
//! 3. `operation::run` notes who is wanted now (`operation::demand`) and reconciles each model once
//!    the models it runs are through (`graph`).
//! 4. `operation::reconcile` compares the model's record with what is wanted and what is on disk,
//!    and has `operation::versions` open what changed: all versions or none.
//! 5. `operation::open` opens one version: completes and checks its config, starts its instances or
//!    its steps, warms them up.
//! 6. `operation::publish` puts a new snapshot of the [`Catalog`] in place, which gateways read;
//!    the actor takes the records back and answers.
//!
//! With `--watch`, `watch` looks at the files and sends `Action::Refresh` for what has changed.

mod action;
mod actor;
mod catalog;
mod check;
mod compile;
mod control;
mod create;
mod disk;
mod failure;
mod graph;
mod locks;
mod lookup;
mod operation;
mod scheduling_notes;
mod settings;
mod stalled;
mod start;
mod summary;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;

pub use self::{
    catalog::{Catalog, ModelEntry, VersionEntry, VersionState},
    check::{CheckReport, check},
    compile::compile,
    create::create,
    disk::pipeline::PIPELINE_FILE,
    failure::UNLOADED,
    settings::Settings,
    stalled::watch_stalled,
    start::{StartedRepository, start},
    summary::{Summary, SummaryRow},
};
pub use troupe_base::model::Overrides;
pub use troupe_options::ControlMode;

use troupe_base::error::Result;

/// Loads and unloads models; a trait, so that gateways can be tested without a repository.
pub trait Control: Send + Sync {
    /// Loads or reloads a model and what it needs; returns once it is ready.
    fn load(&self, name: String, overrides: Overrides) -> BoxFuture<'static, Result<()>>;
    /// Unloads a model; with `dependents` also the steps that were only loaded for it.
    fn unload(&self, name: String, dependents: bool) -> BoxFuture<'static, Result<()>>;
    /// Releases all models, because the server ends. Each ends with its last request.
    fn end(&self);
}

/// What gateways hold of the repository.
#[derive(Clone)]
pub struct Repository {
    /// The newest snapshot.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// Loads and unloads.
    pub control: Arc<dyn Control>,
}
