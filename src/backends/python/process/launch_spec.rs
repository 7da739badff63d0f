//! All that is needed to launch a worker, again and again: what it runs, and whose child it is.

use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::Serialize;

use super::{children::Parent, reaper::Reaper, source_snapshot::SourceSnapshot};
use troupe_base::{
    error::Error,
    metrics::{CopiedBytes, Metrics},
    model::Lookup,
    tensor::SegmentPool,
};

/// The first frame: what the worker runs.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct WorkerSetup {
    /// Only run `auto_complete_config`.
    pub(crate) complete: bool,
    /// Only trace a pipeline: a list of the configs of the models it calls as JSON, or `null`.
    pub(crate) pipeline: Option<String>,
    /// Only import the model and run `preload`, then fork instances.
    pub(crate) template: bool,
    /// Bytes of address space.
    pub(crate) memory_limit: Option<u64>,
    /// Milliseconds; the worker must not hold answers back then.
    pub(crate) execute_timeout_ms: Option<u64>,
    pub(crate) model_name: String,
    pub(crate) model_version: String,
    pub(crate) model_config: String,
    /// Names of the inputs that requests have: those of the config, then what the server adds.
    pub(crate) inputs: Vec<String>,
    /// Names of the outputs, in the same way.
    pub(crate) outputs: Vec<String>,
    /// The model's Python file.
    pub(crate) path: String,
    /// It, and what it may import from its folders, as they were at load.
    pub(crate) snapshot: SourceSnapshot,
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
    /// Whose child the worker is to be.
    pub(crate) parent: Box<dyn ParentSource>,
    pub(crate) reaper: Arc<Reaper>,
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
        self.parent.give_up();
    }
}

/// Finds the process that forks a worker, and starts it if need be.
pub(crate) trait ParentSource: Send + Sync {
    /// One that runs. Blocks.
    fn running(&self) -> Result<Arc<dyn Parent>, LaunchError>;

    /// From now on none gets ready.
    fn give_up(&self) {}
}

/// Why a worker did not get ready.
#[derive(Debug)]
pub(crate) struct LaunchError {
    pub(crate) error: Error,
    pub(crate) cause: LaunchCause,
}

/// What those can mend who started the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchCause {
    /// A module is missing.
    Import,
    /// It took longer than its time limit.
    Overrun,
    Other,
}

impl From<Error> for LaunchError {
    fn from(error: Error) -> LaunchError {
        LaunchError { error, cause: LaunchCause::Other }
    }
}

/// Lets the one who waits for a worker to get ready give up.
#[derive(Default)]
pub(crate) struct PendingStart(Mutex<StartState>);

#[derive(Default)]
struct StartState {
    /// The socket of the worker that is waited for.
    stream: Option<Arc<UnixStream>>,
    is_given_up: bool,
}

impl PendingStart {
    /// `false` if it was given up already.
    pub(crate) fn begin(&self, stream: &Arc<UnixStream>) -> bool {
        let mut starting = self.0.lock();
        starting.stream = Some(stream.clone());
        !starting.is_given_up
    }

    pub(crate) fn end(&self) {
        self.0.lock().stream = None;
    }

    pub(crate) fn give_up(&self) {
        let mut starting = self.0.lock();
        starting.is_given_up = true;
        if let Some(stream) = starting.stream.take() {
            // Whoever reads it finds its end.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}
