//! An executor in another process: hands requests over and answers as results come back.

use std::{
    cell::RefCell,
    num::NonZeroUsize,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Message;
use tokio::sync::oneshot;

use super::Work;
use troupe_base::{
    backend::{Completion, Executed, Outcome, Remote},
    config::ModelConfig,
    error::{Error, Result},
    request::{CallChain, Pending, Reply, Request, Response, deadlock::BlockedInstance},
    statistics::{Statistics, Timing},
    trace::{BatchExecution, FinishedBatch, Span},
};

/// A request that is to be queued anew.
#[derive(Message)]
#[rtype(result = "()")]
pub enum Again {
    /// As the model wants it: behind all others.
    Last(Pending),
    /// It was not begun: among those of its age.
    Unbegun(Pending),
}

/// A worker process and what is needed to answer for it.
pub struct Outside {
    name: Arc<str>,
    remote: Box<dyn Remote>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
}

impl Outside {
    /// Wraps the attached worker of the instance called `name`.
    pub fn new(
        name: Arc<str>,
        remote: Box<dyn Remote>,
        config: Arc<ModelConfig>,
        stats: Arc<Statistics>,
    ) -> Outside {
        Outside { name, remote, config, stats }
    }

    /// How many executions it may have in work at once, if not one after the other.
    pub fn concurrency(&self) -> Option<NonZeroUsize> {
        self.remote.concurrency()
    }

    /// Has its model called others?
    pub fn calls_others(&self) -> bool {
        self.remote.calls_others()
    }

    /// Has the model a say in whether it is ready?
    pub fn has_check(&self) -> bool {
        self.remote.has_check()
    }

    /// Asks it.
    pub fn check(&mut self, answer: oneshot::Sender<Result<()>>) {
        self.remote.check(answer);
    }

    /// The call without whose answer it does nothing, if it has waited for `patience`.
    pub fn stuck(&self, patience: Duration) -> Option<BlockedInstance> {
        self.remote.blocked_call(patience)
    }

    /// Answers that call with an error.
    pub fn refuse(&mut self, call: &Arc<CallChain>, error: &Error) {
        self.remote.fail_call(call, error);
    }

    /// Starts all groups; calls `idle` once the worker can take more, and `again` for requests that
    /// are to be queued anew: at the end, or where they were if they were not begun.
    pub fn run(
        &mut self,
        work: Work,
        idle: impl FnOnce() + 'static,
        again: impl Fn(Again) + 'static,
    ) {
        let mut waiting = Vec::with_capacity(work.0.len());
        let mut groups = Vec::with_capacity(work.0.len());
        for group in work.0 {
            let (requests, replies): (Vec<Request>, Vec<Reply>) =
                group.into_iter().map(|it| (it.request, it.reply)).unzip();
            let rows = requests.iter().map(Request::counted_rows).sum();
            let all_rows = requests.iter().map(Request::rows).sum();
            let spans = requests.iter().filter_map(|it| it.context.span.clone()).collect();
            let replies = replies.into_iter().map(Some).collect();
            waiting.push(Some(Group { replies, rows, all_rows, spans }));
            groups.push(requests);
        }
        let waiting = Waiting {
            groups: RefCell::new(waiting),
            name: self.name.clone(),
            config: self.config.clone(),
            stats: self.stats.clone(),
            begun: Instant::now(),
            idle: RefCell::new(Some(Box::new(idle))),
            again: Box::new(again),
        };
        self.remote.start(groups, Rc::new(waiting));
    }
}

struct Group {
    /// `None` once detached.
    replies: Vec<Option<Reply>>,
    /// For statistics.
    rows: u32,
    /// Those of warm-ups too.
    all_rows: u32,
    /// Of those requests that somebody watches.
    spans: Vec<Span>,
}

/// The replies of one `start`.
struct Waiting {
    groups: RefCell<Vec<Option<Group>>>,
    name: Arc<str>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    begun: Instant,
    idle: RefCell<Option<Box<dyn FnOnce()>>>,
    again: Box<dyn Fn(Again)>,
}

impl Completion for Waiting {
    fn executed(&self, executed: Executed) {
        let group = self.groups.borrow_mut().get_mut(executed.group).and_then(Option::take);
        let Some(Group { replies, rows, all_rows, spans }) = group else { return };
        let now = Instant::now();
        if !spans.is_empty() {
            self.note(&spans, (replies.len(), all_rows), (executed.timing, now));
        }
        match executed.results {
            Ok(results) => {
                self.stats.execution(rows, &executed.timing, now);
                let mut results = results.into_iter();
                for reply in replies {
                    let missing = || Outcome::Answered(Err(too_few(&self.config)));
                    match (results.next().unwrap_or_else(missing), reply) {
                        (Outcome::Answered(result), Some(reply)) => {
                            self.answer(reply, result, (executed.timing, now));
                        }
                        (Outcome::Rescheduled(request, detached), reply) => {
                            if let Some(reply) = reply.or(detached) {
                                (self.again)(Again::Last(Pending { request, reply }));
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
                (self.again)(Again::Unbegun(Pending { request, reply }));
            }
        }
    }

    fn detach(&self, group: usize, index: usize) -> Option<Reply> {
        let mut groups = self.groups.borrow_mut();
        let reply = groups.get_mut(group)?.as_mut()?.replies.get_mut(index)?.take()?;
        Some(reply.by_instance(&self.name))
    }
}

impl Waiting {
    fn note(
        &self,
        spans: &[Span],
        (requests, rows): (usize, u32),
        (timing, now): (Timing, Instant),
    ) {
        let took = timing.compute_input + timing.compute_infer + timing.compute_output;
        // Groups of one frame follow each other.
        let begun = now.checked_sub(took).map_or(self.begun, |it| it.max(self.begun));
        let instance = &self.name;
        BatchExecution::note(spans, FinishedBatch { instance, requests, rows, begun, timing });
    }

    fn answer(&self, reply: Reply, result: Result<Response>, (timing, now): (Timing, Instant)) {
        let queue = self.begun.checked_duration_since(reply.since()).unwrap_or(Duration::ZERO);
        let timing = Timing { queue, ..timing };
        let result = Response::of_instance(result, &self.name);
        reply.answer_at(result.map(|it| Response { timing, ..it }), now);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(idle) = self.idle.borrow_mut().take() {
            idle();
        }
    }
}

fn too_few(config: &ModelConfig) -> Error {
    Error::internal(format!("the worker of model '{}' gave too few responses", config.name))
}
