//! The link between an instance and its worker: what all tasks that serve the worker share.

use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{
    call_table::Calls,
    checks::ReadyChecks,
    connection::WorkerConnection,
    detached::DetachedRequests,
    in_flight::{InFlightBatch, all_failed, deliver},
    spin::AdaptiveSpin,
    spin_policy::SpinPolicy,
};
use crate::python::{
    process::{launch_spec::LaunchSpec, stopped::StoppedLooks},
    protocol::decode::RequestOutcome,
};
use troupe_base::{
    backend::Completion,
    config::{ModelConfig, Output},
    error::{Error, Result},
    failure_log::FailureLog,
    model::Health,
    request::{Request, Response},
    tensor::Tensor,
};

/// What does not change while the instance lives.
pub(crate) struct InstanceSetup {
    pub(crate) spec: Arc<LaunchSpec>,
    pub(crate) config: Arc<ModelConfig>,
    pub(crate) health: Arc<Health>,
    /// The model's version.
    pub(crate) version: i64,
    /// How many executions a worker may have in work at once, if not one after the other.
    pub(crate) concurrency: Option<NonZeroUsize>,
    /// The model has `is_ready`.
    pub(crate) has_check: bool,
    /// Of one `execute`.
    pub(crate) time_limit: Option<Duration>,
    /// Shared by all instances of the model.
    pub(crate) failures: Arc<FailureLog>,
    /// Shared by all Python instances of the server.
    pub(crate) spin: Arc<SpinPolicy>,
}

impl InstanceSetup {
    /// Logs why these requests failed.
    pub(crate) fn note_failure<'a>(
        &self,
        requests: impl IntoIterator<Item = &'a Request>,
        text: &str,
    ) {
        let ids = requests.into_iter().map(|request| &*request.context.id);
        self.failures.log(&self.spec.instance, ids, text);
    }

    /// Warns of outputs that were asked for and are not there, and of those with other rows than
    /// the request has. Triton answers with what there is. A request of one row may have any number
    /// of rows as its answer, as a picture has words.
    pub(crate) fn noted(&self, request: &Request, result: Result<Response>) -> Result<Response> {
        let mut response = result?;
        let rows = request.rows() as usize;
        for (index, output) in response.outputs.iter().enumerate() {
            let Output { name, .. } = &self.config.outputs[index];
            match output {
                None if request.wanted.has(index) && !request.context.is_null => {
                    response.is_incomplete |= self.note_missing(name);
                }
                Some(tensor) if 1 < rows => {
                    if let Some(got) = self.rows_of(index, tensor).filter(|it| *it != rows) {
                        response.has_unexpected_rows = true;
                        self.failures.unexpected_rows(&self.spec.instance, name, rows, got);
                    }
                }
                _ => (),
            }
        }
        Ok(response)
    }

    /// Warns of an output that is not there; false for a state, which no client misses.
    fn note_missing(&self, output: &str) -> bool {
        let instance = &self.spec.instance;
        let is_state = self.config.states().iter().any(|it| *it.output == *output);
        // Of the responses of a stream only one need write it.
        if is_state && !self.config.decoupled {
            self.failures.unwritten_state(instance, output);
        }
        let is_seen = !is_state || self.config.proto.output.iter().any(|it| it.name == output);
        if is_seen {
            self.failures.missing_output(instance, output);
        }
        is_seen
    }

    /// Warns of a batch whose requests were all answered with the rows of the whole batch.
    pub(crate) fn note_whole_batch(&self, requests: &[Request], answers: &mut [RequestOutcome]) {
        if requests.len() < 2 || self.config.max_batch_size == 0 {
            return;
        }
        let rows: usize = requests.iter().map(|it| it.rows() as usize).sum();
        let is_whole = |(index, output): (usize, &Option<Tensor>)| {
            output.as_ref().is_some_and(|it| self.rows_of(index, it) == Some(rows))
        };
        let are_whole = answers.iter().all(|it| match it {
            RequestOutcome::Result(Ok(response)) => {
                !response.outputs.is_empty() && response.outputs.iter().enumerate().all(is_whole)
            }
            _ => false,
        });
        if !are_whole {
            return;
        }
        let Some(output) = self.config.outputs.first() else { return };
        self.failures.whole_batch(&self.spec.instance, &output.name, rows);
        for answer in answers {
            if let RequestOutcome::Result(Ok(response)) = answer {
                response.has_unexpected_rows = true;
            }
        }
    }

    /// The rows of an output; `None` of one without the batch dimension, and of decoupled models,
    /// which answer in parts.
    fn rows_of(&self, index: usize, tensor: &Tensor) -> Option<usize> {
        let Output { dims, reshape, .. } = &self.config.outputs[index];
        let rank = reshape.as_ref().unwrap_or(dims).len() + 1;
        let is_batched = 0 < self.config.max_batch_size && !self.config.decoupled;
        (is_batched && tensor.shape().len() == rank).then(|| tensor.rows())
    }
}

/// The state of one instance, worker or not.
pub(crate) struct WorkerLink {
    pub(crate) setup: Rc<InstanceSetup>,
    pub(crate) state: WorkerState,
    pub(crate) in_flight: VecDeque<InFlightBatch>,
    pub(crate) detached: DetachedRequests,
    pub(crate) calls: Calls,
    pub(crate) checks: ReadyChecks,
    pub(crate) spin: AdaptiveSpin,
    /// Starts behind one whose tensors are being copied; `None` if there is none.
    pub(crate) waiting: Option<VecDeque<Start>>,
    pub(crate) sequence: u32,
    /// Counts the processes.
    pub(crate) generation: u64,
    /// Reused for every frame.
    pub(crate) frame: Vec<u8>,
    /// Nothing was started since the last sweep.
    pub(crate) is_idle: bool,
    /// Notified when something is started, if there is a time limit.
    pub(crate) busy: Option<Rc<Notify>>,
    /// What the worker had begun when it was looked at last, and since when.
    pub(crate) seen_begun: Option<(u64, Instant)>,
    /// It has given work back, and not answered since.
    pub(crate) is_behind: bool,
    /// Looks at which the worker had work and was stopped.
    pub(crate) stopped_looks: StoppedLooks,
    /// Why the worker is being ended.
    pub(crate) overrun: Option<Overrun>,
    /// The worker has answered something.
    pub(crate) is_proven: bool,
    /// Keeps the instance from being given work while it has no worker.
    pub(crate) held: Vec<Rc<dyn Completion>>,
}

/// What `Remote::start` was given.
pub(crate) struct Start {
    pub(crate) groups: Vec<Vec<Request>>,
    /// The process that it is for.
    pub(crate) generation: u64,
    pub(crate) done: Rc<dyn Completion>,
}

/// Why a worker is being ended, and since when.
pub(crate) struct Overrun {
    pub(crate) text: String,
    pub(crate) since: Instant,
}

/// Is there a worker?
pub(crate) enum WorkerState {
    Up(Box<WorkerConnection>),
    Down {
        why: String,
        /// A worker is being started, for the first time since the last one ended.
        is_brief: bool,
    },
}

/// Triton's words around what went wrong.
pub(crate) fn failure(instance: &str, text: &str) -> String {
    format!("Failed to process the request(s) for model instance '{instance}', message: {text}")
}

/// The error of requests to an instance whose worker is not there, in Triton's words.
pub(crate) fn unhealthy(setup: &InstanceSetup, text: &str) -> String {
    let InstanceSetup { spec, config, .. } = setup;
    let LaunchSpec { instance, .. } = &**spec;
    let stub = format!("Stub process '{instance}' is not healthy.");
    failure(instance, &format!("{stub} Model '{}': {text}", config.name))
}

impl Drop for WorkerLink {
    fn drop(&mut self) {
        let error = Error::unavailable("the model was unloaded");
        let mut events = self.give_up(&error, u64::MAX);
        for Start { groups, done, .. } in self.waiting.take().into_iter().flatten() {
            events.extend(all_failed(&groups, &done, &error));
        }
        deliver(events);
        self.setup.spec.give_up();
    }
}
