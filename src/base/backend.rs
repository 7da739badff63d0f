//! What runs a model, as the engine sees it: executors in this process, workers outside it.

use std::{
    collections::BTreeMap, num::NonZeroUsize, path::PathBuf, rc::Rc, sync::Arc, time::Duration,
};

use tokio::sync::oneshot;
use troupe_options::Spin;

use crate::{
    budget::ByteBudget,
    error::{Error, Result},
    metrics::Metrics,
    model::{Health, Lookup},
    request::{CallChain, Context, Reply, Request, Response, deadlock::BlockedInstance},
    statistics::Timing,
    tensor::{SegmentPool, SegmentSizes, Tensor},
};

/// Tensors by position in the config.
pub type Tensors = Vec<Option<Tensor>>;

/// Where an instance's `execute` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On a thread that serves others: it takes microseconds and never blocks.
    Shared,
    /// There as long as its inputs have no more bytes than this: it takes a few nanoseconds for each
    /// of them, whatever they say, and never blocks. With more of them, on any thread that may block.
    SharedUpTo(usize),
    /// On a thread of its own: it may block.
    Own,
}

/// Which instance is being opened.
#[derive(Clone, Debug)]
pub struct InstanceName {
    /// `group_0`, as Triton names instances.
    pub name: String,
    /// Its place among all instances of the model.
    pub index: usize,
    /// `CPU`, `GPU` or `MODEL`.
    pub kind: &'static str,
    /// The GPU, 0 on a CPU.
    pub device: i32,
    /// The server chose the kind: if the backend cannot use the GPU, the instance runs on the CPU.
    pub is_auto: bool,
    /// Told when the instance loses its worker and when it has one again.
    pub health: Arc<Health>,
}

/// A model that can be opened as often as it has instances.
#[derive(Clone)]
pub enum Backend {
    /// Executes joined tensors in this process.
    Local(Arc<dyn OpenLocal>),
    /// Hands whole requests to something that answers later: a worker process.
    Remote(Arc<dyn OpenRemote>),
}

/// Opens executors in this process.
pub trait OpenLocal: Send + Sync {
    /// Which kind of thread its executors need.
    fn placement(&self) -> Placement;
    /// Do the shapes of an execution's inputs say about how long it takes? Then those of shapes that
    /// took microseconds may run on a thread that serves others. Not if what the inputs say makes
    /// more or less work: compressed pictures, loops over data, sizes that are computed.
    fn is_predictable(&self) -> bool {
        true
    }
    /// Called on the instance's own thread; may block only if the placement is `Own`.
    fn open(&self, instance: &InstanceName) -> Result<Box<dyn Executor>>;
}

/// One loaded copy of a model. Opened on its instance's thread; executions may run on another: those
/// that take microseconds, and those that are too long for a shared one. Dropped on its instance's
/// thread, unless an execution that is under way elsewhere ends after its model was unloaded: then
/// on any thread.
pub trait Executor: Send {
    /// Runs one batch. Answers one place per output of the config; a scattered output may have one
    /// dimension, its elements.
    fn execute(&mut self, batch: Batch<'_>) -> Result<Tensors>;
}

/// The input of one execution: joined tensors, and the requests they were joined from.
pub struct Batch<'a> {
    /// One place per `ModelConfig::executor_inputs`: the batch inputs come last. A ragged input has
    /// one dimension, its elements.
    pub inputs: Tensors,
    /// Rows in every input; 0 (and no batch dimension) for models that do not batch.
    pub rows: u32,
    /// In the order of their rows.
    requests: &'a [Request],
}

impl<'a> Batch<'a> {
    /// The joined `inputs` of these requests.
    pub fn new(inputs: Tensors, rows: u32, requests: &'a [Request]) -> Batch<'a> {
        Batch { inputs, rows, requests }
    }

    /// Tensors that come from no request.
    pub fn of_tensors(inputs: Tensors, rows: u32) -> Batch<'static> {
        Batch { inputs, rows, requests: &[] }
    }

    /// What is known of each request beside its tensors (correlation, flags, priority), in the
    /// order of the rows, and how many rows are its own.
    pub fn contexts(&self) -> impl Iterator<Item = (&'a Arc<Context>, u32)> {
        self.requests.iter().map(|request| (&request.context, request.rows()))
    }
}

/// Opens workers outside this process.
pub trait OpenRemote: Send + Sync {
    /// Called on a loading thread, may block.
    fn open(&self, instance: &InstanceName) -> Result<OpenedRemote>;
}

/// A worker that is open, but not yet attached to the instance's thread.
pub struct OpenedRemote {
    /// Attaches it to the runtime of the current thread.
    pub start: Box<dyn FnOnce() -> Result<Box<dyn Remote>> + Send>,
    /// The `concurrency` that it will have.
    pub concurrency: Option<NonZeroUsize>,
}

/// One worker. Lives on an arbiter that serves others: it never blocks.
pub trait Remote {
    /// Runs the groups, each as one execution, and calls `completion` once per group.
    ///
    /// Dropping the worker ends its process; what is in flight then fails.
    fn start(&mut self, groups: Vec<Vec<Request>>, completion: Rc<dyn Completion>);

    /// How many executions may be in work at once, for a worker that does other things while one of
    /// them waits; `None` for one that runs them one after the other.
    fn concurrency(&self) -> Option<NonZeroUsize> {
        None
    }

    /// Counts its processes: another one knows nothing of earlier requests. The number is a new one
    /// before the requests that the last process had begun are answered.
    fn generation(&self) -> u64 {
        0
    }

    /// Is nothing in work, not even an answer that is given later?
    fn is_quiet(&self) -> bool {
        true
    }

    /// Has it no process, and is none about to come?
    fn stays_down(&self) -> bool {
        false
    }

    /// Has it no process at this moment, and has told its `Health` so?
    fn is_down(&self) -> bool {
        false
    }

    /// It is given no work any more: what it keeps so as not to be given any while it is down, to
    /// be dropped.
    fn let_go(&mut self) -> Vec<Rc<dyn Completion>> {
        Vec::new()
    }

    /// Has its model called others? Then any execution may take long.
    fn calls_others(&self) -> bool {
        false
    }

    /// Gives what its process has not begun back to those who started it, if the process has been
    /// busy with one execution for a while. Says whether it may have something to give back later.
    fn give_back(&mut self) -> bool {
        false
    }

    /// Has it given work back, and not got on since? Then it can take more, but not soon.
    fn is_behind(&self) -> bool {
        false
    }

    /// Has the model a say in whether it is ready?
    fn has_check(&self) -> bool {
        false
    }

    /// Asks the model whether it is ready; an error says why not. Those who ask while another one
    /// waits share its answer. A worker that is down agrees: its `Health` speaks for it.
    fn check(&mut self, answer: oneshot::Sender<Result<()>>) {
        // Whoever asked may have given up.
        let _ = answer.send(Ok(()));
    }

    /// The call of another model that the worker is blocked in, if it has waited for `min_wait`.
    fn blocked_call(&self, min_wait: Duration) -> Option<BlockedInstance> {
        let _ = min_wait;
        None
    }

    /// Answers that call with an error: it is part of a deadlock.
    fn fail_call(&mut self, call: &Arc<CallChain>, error: &Error) {
        let _ = (call, error);
    }
}

/// How one execution of a group of requests ended.
pub struct Executed {
    /// Position of the group in `start`.
    pub group: usize,
    /// One outcome per request, or one failure for all that were not detached before.
    pub results: Result<Vec<Outcome>>,
    /// `queue` is left empty.
    pub timing: Timing,
}

/// What became of one request of a group.
pub enum Outcome {
    /// It is answered.
    Answered(Result<Response>),
    /// It was detached and is answered apart from its group.
    Detached,
    /// It is to be queued and executed anew; with its reply if it was detached.
    Rescheduled(Request, Option<Reply>),
}

/// Receives the results of one `start`, group by group.
pub trait Completion {
    /// Called once per group. Once all groups are through and every `Rc` is dropped, the worker
    /// is given more; a worker that is not ready keeps its `Rc` until it is.
    fn executed(&self, executed: Executed);

    /// Takes back a group that was not begun, to be queued anew; instead of `executed`.
    fn not_started(&self, group: usize, requests: Vec<Request>);

    /// Nothing of this work executes any more, though its `Rc` is kept until the worker is ready.
    fn has_stopped(&self) {}

    /// Takes the reply of one request that is answered apart from its group; before `executed`.
    fn detach(&self, group: usize, index: usize) -> Option<Reply>;
}

/// Where a model's files are.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    /// The model's name.
    pub name: String,
    /// The model's folder.
    pub model_dir: PathBuf,
    /// The version's number; its files are in `model_dir/version`.
    pub version: i64,
}

/// What the command line says about backends.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--backend-config=<backend>,<key>=<value>`; global ones under the empty backend.
    pub options: BTreeMap<(String, String), String>,
    /// May what models need and the machine lacks be made (`--provision`)?
    pub provision: bool,
    /// Where models find others to call; `None` where there are no others.
    pub lookup: Option<Arc<dyn Lookup>>,
    /// Where backends count, and models their own.
    pub metrics: Metrics,
    /// What requests in flight hold together, of one server.
    pub budget: Arc<ByteBudget>,
    /// Shared memory for tensors, of one server.
    pub segments: Arc<SegmentPool>,
    /// Whether threads poll before they sleep (`--spin`).
    pub spin: Spin,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            options: BTreeMap::new(),
            provision: false,
            lookup: None,
            metrics: Metrics::default(),
            budget: ByteBudget::unlimited(),
            segments: SegmentPool::of_server(SegmentSizes::default(), 0, &ByteBudget::unlimited()),
            spin: Spin::default(),
        }
    }
}

impl Settings {
    /// The value of `key` for `backend`, else the global one.
    pub fn get(&self, backend: &str, key: &str) -> Option<&str> {
        let of = |backend: &str| self.options.get(&(backend.to_owned(), key.to_owned()));
        of(backend).or_else(|| of("")).map(String::as_str)
    }
}
