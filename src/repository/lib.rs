//! How models come and go: scan, load, publish.

mod actor;
mod catalog;
mod check;
mod control;
mod definition;
mod graph;
mod inside;
mod labels;
mod load;
mod node;
mod operation;
mod overlay;
mod poll;
mod publish;
mod scan;
mod settings;
mod summary;
#[cfg(test)]
mod tests;
mod turns;
mod visit;
mod warmup;
mod watchdog;
mod world;

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;

pub use self::{
    catalog::{Catalog, ModelEntry, VersionEntry, VersionState},
    check::check,
    control::{StartedRepository, start},
    settings::Settings,
    summary::{Summary, SummaryRow},
    watchdog::watch_stalled,
};
pub use troupe_base::model::Overrides;
pub use troupe_options::ControlMode;

use troupe_base::error::Result;

/// Changes the catalog; gateways hold it as a trait object so that they can be tested without one.
pub trait Control: Send + Sync {
    /// Loads or reloads a model and what it needs; returns once it is ready.
    fn load(&self, name: String, overrides: Overrides) -> BoxFuture<'static, Result<()>>;
    /// Takes a model out; with `dependents` also the steps only it had loaded.
    fn unload(&self, name: String, dependents: bool) -> BoxFuture<'static, Result<()>>;
    /// Lets go of all models, for good: the server ends. They end with their last request.
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
