//! Opens an instance's model, at load and again when its engine has ended.

use std::{num::NonZeroUsize, sync::Arc};

use tokio::{sync::oneshot, task::spawn_blocking};

use super::{
    engine::Engine,
    inline::Inline,
    local::LocalModel,
    panics::caught,
    remote::RemoteModel,
    threaded::{self, OpenedThread},
};
use crate::rate_limiter::Seat;
use troupe_base::{
    backend::{Backend, InstanceName, OpenedRemote, Placement},
    config::ModelConfig,
    error::{Error, Result},
    failure_log::FailureLog,
    statistics::Statistics,
};

/// The parameter of a config that says which thread its model runs on.
const PLACEMENT: &str = "placement";

/// What an instance is opened from.
#[derive(Clone)]
pub struct InstanceOpener {
    /// Opens the model.
    pub backend: Backend,
    /// Which instance this is.
    pub name: InstanceName,
    /// Of its model.
    pub config: Arc<ModelConfig>,
    /// Of its model.
    pub stats: Arc<Statistics>,
    /// Of its model: executions of this process that fail; a worker's tell of themselves.
    pub failures: Arc<FailureLog>,
    /// What it claims before it executes, where that is limited.
    pub seat: Option<Arc<Seat>>,
}

/// A model that is open, but not yet attached to its batcher's thread.
pub enum OpenedModel {
    /// It is opened there: that is quick.
    Inline,
    /// It has a thread.
    Threaded(OpenedThread),
    /// It has a process.
    Remote(OpenedRemote),
}

impl OpenedModel {
    /// How many executions may be in work at once, if it does other things while one of them waits.
    pub fn concurrency(&self) -> Option<NonZeroUsize> {
        match self {
            OpenedModel::Remote(opened) => opened.concurrency,
            OpenedModel::Inline | OpenedModel::Threaded(_) => None,
        }
    }
}

/// An engine on its batcher's thread.
pub(super) struct Attached {
    pub(super) engine: Box<dyn Engine>,
    /// Resolves when the engine has ended by itself.
    pub(super) ended: Option<oneshot::Receiver<()>>,
}

impl InstanceOpener {
    /// Opens the model, wherever it is to run.
    pub async fn open(&self) -> Result<OpenedModel> {
        match &self.backend {
            Backend::Local(_) if runs_inline(&self.backend, &self.config)? => {
                Ok(OpenedModel::Inline)
            }
            Backend::Local(_) => {
                let opener = self.clone();
                let opened = threaded::spawn(&self.name.name, move || opener.open_here());
                opened.await.map(OpenedModel::Threaded)
            }
            Backend::Remote(remote) => {
                let (remote, name) = (remote.clone(), self.name.clone());
                let opened = spawn_blocking(move || remote.open(&name)).await;
                let label = &self.name.name;
                let lost = |error| Error::internal(format!("opening '{label}' failed: {error}"));
                Ok(OpenedModel::Remote(opened.map_err(lost)??))
            }
        }
    }

    /// Called on the batcher's thread.
    pub(super) fn attach(&self, opened: OpenedModel) -> Result<Attached> {
        Ok(match opened {
            OpenedModel::Inline => {
                let engine = Inline::new(self.open_here()?, self.max_inline_bytes());
                Attached { engine: Box::new(engine), ended: None }
            }
            OpenedModel::Threaded(opened) => {
                let (engine, ended) = opened.attach(self.is_pinned());
                Attached { engine: Box::new(engine), ended: Some(ended) }
            }
            OpenedModel::Remote(opened) => {
                let name = (*self.name.name).into();
                let (config, stats) = (self.config.clone(), self.stats.clone());
                let remote = RemoteModel::new(name, (opened.start)()?, config, stats);
                Attached { engine: Box::new(remote), ended: None }
            }
        })
    }

    /// Does everything run on its own thread? The config may say so; what waits for a GPU may wait
    /// for others that use it, whatever its shapes.
    fn is_pinned(&self) -> bool {
        let is_predictable = match &self.backend {
            Backend::Local(local) => local.is_predictable(),
            Backend::Remote(_) => false,
        };
        !is_predictable || self.is_placed() || self.name.kind == "GPU"
    }

    /// Does the config say where it runs?
    fn is_placed(&self) -> bool {
        self.config.parameters.contains_key(PLACEMENT)
    }

    /// Bytes of the inputs that it executes on its batcher's thread; `None`: all.
    fn max_inline_bytes(&self) -> Option<usize> {
        let Backend::Local(local) = &self.backend else { return None };
        match local.placement() {
            Placement::SharedUpTo(bytes) if !self.is_placed() => Some(bytes),
            _ => None,
        }
    }

    /// Opens a model of this process on the current thread.
    pub(super) fn open_here(&self) -> Result<LocalModel> {
        let Backend::Local(local) = &self.backend else {
            return Err(Error::internal("a model of another process cannot be opened in this one"));
        };
        let failed = |text| Err(Error::internal(format!("'{}' panicked: {text}", self.name.name)));
        let executor = caught(|| local.open(&self.name)).unwrap_or_else(failed)?;
        let name = (*self.name.name).into();
        let InstanceOpener { config, stats, failures, .. } = self.clone();
        Ok(LocalModel::new(executor, name, config, stats, failures))
    }
}

/// Are executions, or those with few bytes, short enough for the thread of a batcher? The backend's
/// choice, unless `parameters { key: "placement" }` says otherwise; never in another process.
pub fn runs_inline(backend: &Backend, config: &ModelConfig) -> Result<bool> {
    let Backend::Local(backend) = backend else { return Ok(false) };
    match config.parameters.get(PLACEMENT).map(String::as_str) {
        None => Ok(backend.placement() != Placement::Own),
        Some("shared") => Ok(true),
        Some("own") => Ok(false),
        Some(other) => Err(Error::invalid(format!(
            "parameter 'placement' of model '{}' is '{other}', expected 'shared' or 'own'",
            config.name
        ))),
    }
}
