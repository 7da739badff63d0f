//! The remote engine: hands requests to a worker process and answers as results come back.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    batch_input,
    engine::{Capacity, Engine, EngineProgress},
    slot::{OfferedSlot, Requeue, SlotGuard},
    work::InstanceWork,
};
use troupe_base::{
    backend::{Completion, Executed, Outcome, Remote},
    config::ModelConfig,
    error::{Error, Result},
    request::{Pending, Reply, Request, Response},
    statistics::{ExecutedRows, Statistics, Timing},
    trace::{BatchExecution, FinishedBatch, Span},
};

/// A worker process and what is needed to answer for it.
pub(super) struct RemoteModel {
    name: Arc<str>,
    remote: Box<dyn Remote>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
}

impl RemoteModel {
    /// Wraps the attached worker of the instance called `name`.
    pub(super) fn new(
        name: Arc<str>,
        remote: Box<dyn Remote>,
        config: Arc<ModelConfig>,
        stats: Arc<Statistics>,
    ) -> RemoteModel {
        RemoteModel { name, remote, config, stats }
    }
}

impl Engine for RemoteModel {
    fn start(&mut self, work: InstanceWork, slot: OfferedSlot<'_>) -> EngineProgress {
        // First of all: whatever happens then, the slot is released.
        let guard = slot.guard(work.executions());
        let mut groups = Vec::with_capacity(work.0.len());
        let mut requests_of = Vec::with_capacity(work.0.len());
        for group in work.0 {
            let (mut requests, replies): (Vec<Request>, Vec<Reply>) =
                group.into_iter().map(|pending| (pending.request, pending.reply)).unzip();
            if !self.config.batch_inputs.is_empty()
                && let Err(error) = batch_input::extend(&self.config, &mut requests)
            {
                replies.into_iter().for_each(|it| it.answer(Err(error.clone())));
                continue;
            }
            let counted_rows = requests.iter().map(Request::executed_rows).sum();
            let rows = requests.iter().map(Request::rows).sum();
            let spans =
                requests.iter().filter_map(|request| request.context.span.clone()).collect();
            let replies = replies.into_iter().map(Some).collect();
            groups.push(Some(Group { replies, counted_rows, rows, spans }));
            requests_of.push(requests);
        }
        if groups.is_empty() {
            return EngineProgress::Later;
        }
        let in_flight = RemoteWork {
            groups: RefCell::new(groups),
            name: self.name.clone(),
            config: self.config.clone(),
            stats: self.stats.clone(),
            begun: Instant::now(),
            guard,
        };
        self.remote.start(requests_of, Rc::new(in_flight));
        EngineProgress::Later
    }

    fn capacity(&self) -> Capacity {
        let concurrency = self.remote.concurrency();
        Capacity { concurrency, has_queue: true }
    }

    fn worker(&mut self) -> Option<&mut dyn Remote> {
        Some(&mut *self.remote)
    }
}

struct Group {
    /// `None` once detached.
    replies: Vec<Option<Reply>>,
    /// For statistics: without those of warm-ups.
    counted_rows: ExecutedRows,
    rows: u32,
    /// Of requests that are traced.
    spans: Vec<Span>,
}

/// How much of the traced work one execution was.
struct Share {
    requests: usize,
    rows: u32,
}

/// The replies of one `start`. Once it is dropped the worker can take more.
struct RemoteWork {
    groups: RefCell<Vec<Option<Group>>>,
    name: Arc<str>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    begun: Instant,
    guard: SlotGuard,
}

impl Completion for RemoteWork {
    fn executed(&self, executed: Executed) {
        let group = self.groups.borrow_mut().get_mut(executed.group).and_then(Option::take);
        let Some(Group { replies, counted_rows, rows, spans }) = group else { return };
        let now = Instant::now();
        if !spans.is_empty() {
            let requests = replies.len();
            self.note(&spans, Share { requests, rows }, executed.timing, now);
        }
        match executed.results {
            Ok(results) => {
                self.guard.measured(executed.timing.compute());
                self.stats.execution(counted_rows, &executed.timing, now);
                let mut results = results.into_iter();
                for reply in replies {
                    let missing = || Outcome::Answered(Err(too_few(&self.config)));
                    match (results.next().unwrap_or_else(missing), reply) {
                        (Outcome::Answered(result), Some(reply)) => {
                            self.answer(reply, result, executed.timing, now);
                        }
                        (Outcome::Rescheduled(request, detached), reply) => {
                            if let Some(reply) = reply.or(detached) {
                                let pending = Pending { request, reply };
                                self.guard.owner().requeue(Requeue::Rescheduled(pending));
                            }
                        }
                        // Whoever answers later has its reply already.
                        (Outcome::Answered(_), None) | (Outcome::Detached, _) => (),
                    }
                }
            }
            Err(error) => {
                let (open, error) = (replies.into_iter().flatten(), error.at_instance(&self.name));
                open.for_each(|it| it.answer_at(Err(error.clone()), now));
            }
        }
    }

    fn not_started(&self, group: usize, requests: Vec<Request>) {
        let group = self.groups.borrow_mut().get_mut(group).and_then(Option::take);
        let Some(Group { replies, .. }) = group else { return };
        for (request, reply) in requests.into_iter().zip(replies) {
            if let Some(reply) = reply {
                let pending = Pending { request, reply };
                self.guard.owner().requeue(Requeue::NotStarted(pending));
            }
        }
    }

    fn has_stopped(&self) {
        self.guard.has_stopped();
    }

    fn detach(&self, group: usize, index: usize) -> Option<Reply> {
        let mut groups = self.groups.borrow_mut();
        let reply = groups.get_mut(group)?.as_mut()?.replies.get_mut(index)?.take()?;
        Some(reply.by_instance(&self.name))
    }
}

impl RemoteWork {
    fn note(&self, spans: &[Span], share: Share, timing: Timing, now: Instant) {
        let took = timing.compute();
        // Groups of one frame follow each other.
        let begun = now.checked_sub(took).map_or(self.begun, |it| it.max(self.begun));
        let (instance, Share { requests, rows }) = (&self.name, share);
        BatchExecution::note(spans, FinishedBatch { instance, requests, rows, begun, timing });
    }

    fn answer(&self, reply: Reply, result: Result<Response>, timing: Timing, now: Instant) {
        let queue = self.begun.checked_duration_since(reply.since()).unwrap_or(Duration::ZERO);
        let timing = Timing { queue, ..timing };
        let mut result = result;
        Response::name_instance(&mut result, &self.name);
        reply.answer_at(result.map(|it| Response { timing, ..it }), now);
    }
}

fn too_few(config: &ModelConfig) -> Error {
    Error::internal(format!("the worker of model '{}' gave too few responses", config.name))
}
