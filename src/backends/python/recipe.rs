//! How a worker is started: what it runs, whose child it is, and how its start is given up.

use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::Serialize;

use super::{
    forks::Parent,
    host::{Host, living},
    preload::Preload,
    process::Refused,
};
use troupe_base::{
    error::Result,
    metrics::{CopiedBytes, Metrics},
    model::Lookup,
    tensor::SegmentPool,
};

/// The first frame: what the worker runs.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Orders {
    /// Only run `auto_complete_config`.
    pub(super) complete: bool,
    /// Only import the model and run `preload`, then fork instances.
    pub(super) template: bool,
    /// Bytes of address space.
    pub(super) memory_limit: Option<u64>,
    /// Milliseconds; the worker must not hold answers back then.
    pub(super) execute_timeout_ms: Option<u64>,
    pub(super) model_name: String,
    pub(super) model_version: String,
    pub(super) model_config: String,
    /// The model's Python file.
    pub(super) path: String,
    pub(super) model_dir: String,
    /// Sizes of the worker's own segments are multiples of this, unless it is 0.
    pub(super) shm_growth: usize,
    /// Unused bytes of them it keeps.
    pub(super) shm_kept: usize,
    /// What `initialize` is given.
    pub(super) args: std::collections::BTreeMap<&'static str, String>,
}

/// All that is needed to start a worker, again and again.
pub(super) struct Recipe {
    pub(super) source: Source,
    pub(super) orders: Orders,
    /// Of one start.
    pub(super) time_limit: Option<Duration>,
    pub(super) model: Arc<str>,
    pub(super) instance: Arc<str>,
    /// Where the model's own metrics are.
    pub(super) metrics: Metrics,
    pub(super) copied: Arc<CopiedBytes>,
    /// Where large tensors are put.
    pub(super) pool: Arc<SegmentPool>,
    /// Where the model finds others; `None` where there are none.
    pub(super) lookup: Option<Arc<dyn Lookup>>,
    /// The socket of a worker that is not ready yet.
    pub(super) starting: Starting,
}

impl Recipe {
    /// From now on no worker gets ready.
    pub(super) fn give_up(&self) {
        self.starting.give_up();
        if let Source::Preloaded(preload) = &self.source {
            preload.give_up();
        }
    }
}

/// Whose child the worker is to be.
pub(super) enum Source {
    /// The interpreter's; another one after it has ended.
    Interpreter(Mutex<Arc<Host>>),
    /// A process that has imported the model already.
    Preloaded(Arc<Preload>),
}

impl Source {
    /// One that lives. Blocks.
    pub(super) fn parent(&self) -> Result<Arc<dyn Parent>, Refused> {
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
pub(super) struct Starting(Mutex<(Option<UnixStream>, bool)>);

impl Starting {
    /// `false` if it was given up already.
    pub(super) fn begin(&self, stream: &UnixStream) -> bool {
        let mut starting = self.0.lock();
        // Without a copy of the descriptor it cannot be given up, and that is all.
        starting.0 = stream.try_clone().ok();
        !starting.1
    }

    pub(super) fn end(&self) {
        self.0.lock().0 = None;
    }

    pub(super) fn give_up(&self) {
        let mut starting = self.0.lock();
        starting.1 = true;
        if let Some(stream) = starting.0.take() {
            // Whoever reads it finds its end.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}
