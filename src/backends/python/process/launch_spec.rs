//! How a worker is started: what it runs, whose child it is, and how its start is given up.

use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::Serialize;

use crate::python::process::children::Parent;
use crate::python::process::fork_server::ForkServer;
use crate::python::process::fork_server::living;
use crate::python::process::preload::Preload;
use crate::python::process::worker_process::LaunchError;
use troupe_base::{
    error::Result,
    metrics::{CopiedBytes, Metrics},
    model::Lookup,
    tensor::SegmentPool,
};

/// The first frame: what the worker runs.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct WorkerSetup {
    /// Only run `auto_complete_config`.
    pub(crate) complete: bool,
    /// Only import the model and run `preload`, then fork instances.
    pub(crate) template: bool,
    /// Bytes of address space.
    pub(crate) memory_limit: Option<u64>,
    /// Milliseconds; the worker must not hold answers back then.
    pub(crate) execute_timeout_ms: Option<u64>,
    pub(crate) model_name: String,
    pub(crate) model_version: String,
    pub(crate) model_config: String,
    /// The model's Python file.
    pub(crate) path: String,
    pub(crate) model_dir: String,
    /// Sizes of the worker's own segments are multiples of this, unless it is 0.
    pub(crate) shm_growth: usize,
    /// Unused bytes of them it keeps.
    pub(crate) shm_kept: usize,
    /// What `initialize` is given.
    pub(crate) args: std::collections::BTreeMap<&'static str, String>,
}

/// All that is needed to start a worker, again and again.
pub(crate) struct LaunchSpec {
    pub(crate) source: Source,
    pub(crate) setup: WorkerSetup,
    /// Of one start.
    pub(crate) time_limit: Option<Duration>,
    pub(crate) model: Arc<str>,
    pub(crate) instance: Arc<str>,
    /// Where the model's own metrics are.
    pub(crate) metrics: Metrics,
    pub(crate) copied: Arc<CopiedBytes>,
    /// Where large tensors are put.
    pub(crate) pool: Arc<SegmentPool>,
    /// Where the model finds others; `None` where there are none.
    pub(crate) lookup: Option<Arc<dyn Lookup>>,
    /// The socket of a worker that is not ready yet.
    pub(crate) starting: PendingStart,
}

impl LaunchSpec {
    /// From now on no worker gets ready.
    pub(crate) fn give_up(&self) {
        self.starting.give_up();
        if let Source::Preloaded(preload) = &self.source {
            preload.give_up();
        }
    }
}

/// Whose child the worker is to be.
pub(crate) enum Source {
    /// The interpreter's; another one after it has ended.
    Interpreter(Mutex<Arc<ForkServer>>),
    /// A process that has imported the model already.
    Preloaded(Arc<Preload>),
}

impl Source {
    /// One that lives. Blocks.
    pub(crate) fn parent(&self) -> Result<Arc<dyn Parent>, LaunchError> {
        match self {
            Source::Interpreter(host) => {
                let alive = living(host.lock().clone())?;
                *host.lock() = alive.clone();
                Ok(alive)
            }
            Source::Preloaded(preload) => Ok(preload.template()?),
        }
    }
}

/// Lets the one who waits for a worker to get ready give up.
#[derive(Default)]
pub(crate) struct PendingStart(Mutex<(Option<UnixStream>, bool)>);

impl PendingStart {
    /// `false` if it was given up already.
    pub(crate) fn begin(&self, stream: &UnixStream) -> bool {
        let mut starting = self.0.lock();
        // Without a copy of the descriptor it cannot be given up, and that is all.
        starting.0 = stream.try_clone().ok();
        !starting.1
    }

    pub(crate) fn end(&self) {
        self.0.lock().0 = None;
    }

    pub(crate) fn give_up(&self) {
        let mut starting = self.0.lock();
        starting.1 = true;
        if let Some(stream) = starting.0.take() {
            // Whoever reads it finds its end.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}
