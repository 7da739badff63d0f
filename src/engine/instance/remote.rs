//! The remote engine: hands requests to a worker process and answers as results come back.

use std::{
    cell::{Cell, RefCell},
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
    config::{Batching, ModelConfig},
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
            open: Cell::new(groups.len()),
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

/// The replies of one `start`. Once its last group has ended the worker can take more.
struct RemoteWork {
    groups: RefCell<Vec<Option<Group>>>,
    /// How many of them are neither executed nor handed back.
    open: Cell<usize>,
    name: Arc<str>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    begun: Instant,
    guard: SlotGuard,
}

impl Completion for RemoteWork {
    fn executed(&self, executed: Executed) {
        let Some(group) = self.take(executed.group) else { return };
        let Group { replies, counted_rows, rows, spans } = group;
        let now = Instant::now();
        if !spans.is_empty() {
            let requests = replies.len();
            self.note(&spans, Share { requests, rows }, executed.timing, now);
        }
        match executed.results {
            Ok(results) => {
                self.guard.measured(executed.timing.compute());
                self.stats.execution(counted_rows, &executed.timing, now);
                if self.may_release(&results) {
                    self.guard.release();
                }
                let mut results = results.into_iter();
                for reply in replies {
                    let missing = || Outcome::Answered(Err(too_few(&self.config)));
                    match (results.next().unwrap_or_else(missing), reply) {
                        (Outcome::Answered(result), Some(reply)) => {
                            self.answer(reply, result, executed.timing, now);
                        }
                        (Outcome::Rescheduled(request, detached), reply) => {
                            if let Some(mut reply) = reply.or(detached) {
                                reply.iterated(self.timing(&reply, executed.timing), now);
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
        let Some(Group { replies, .. }) = self.take(group) else { return };
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
    /// A group that has ended, unless it was taken before.
    fn take(&self, group: usize) -> Option<Group> {
        let taken = self.groups.borrow_mut().get_mut(group)?.take()?;
        self.open.set(self.open.get() - 1);
        Some(taken)
    }

    /// Sequences wait until the worker is through with others: they are sent before those who are
    /// answered have their turn on this thread. But what is to be executed anew is queued first. Other
    /// batches get better by waiting.
    fn may_release(&self, results: &[Outcome]) -> bool {
        matches!(self.config.batching, Batching::Sequence(_))
            && self.open.get() == 0
            && !results.iter().any(|it| matches!(it, Outcome::Rescheduled(..)))
    }

    fn note(&self, spans: &[Span], share: Share, timing: Timing, now: Instant) {
        let took = timing.compute();
        // Groups of one frame follow each other.
        let begun = now.checked_sub(took).map_or(self.begun, |it| it.max(self.begun));
        let (instance, Share { requests, rows }) = (&self.name, share);
        BatchExecution::note(spans, FinishedBatch { instance, requests, rows, begun, timing });
    }

    /// The same with what this request waited for the execution.
    fn timing(&self, reply: &Reply, timing: Timing) -> Timing {
        let queue = self.begun.checked_duration_since(reply.waits_since());
        Timing { queue: queue.unwrap_or(Duration::ZERO), ..timing }
    }

    fn answer(&self, reply: Reply, result: Result<Response>, timing: Timing, now: Instant) {
        let timing = reply.whole(self.timing(&reply, timing));
        let mut result = result;
        Response::name_instance(&mut result, &self.name);
        reply.answer_at(result.map(|it| Response { timing, ..it }), now);
    }
}

fn too_few(config: &ModelConfig) -> Error {
    Error::internal(format!("the worker of model '{}' gave too few responses", config.name))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use troupe_base::{
        config::{ServerFeatures, read_text},
        request::Answer,
    };

    use super::*;
    use crate::instance::slot::{SlotOwner, SlotReleased, SlotStopped};

    /// What happened, in order.
    #[derive(Clone, Default)]
    struct Story(Arc<Mutex<Vec<&'static str>>>);

    impl SlotOwner for Story {
        fn release(&self, _: SlotReleased) {
            self.0.lock().push("released");
        }

        fn stopped(&self, _: SlotStopped) {}

        fn requeue(&self, _: Requeue) {
            self.0.lock().push("requeued");
        }
    }

    impl Answer for Story {
        fn answer(self: Box<Self>, _: Result<Response>, _: Instant) {
            self.0.lock().push("answered");
        }
    }

    /// A worker that has ended each group before `start` returns.
    struct Ends(Vec<Result<Vec<Outcome>>>);

    impl Remote for Ends {
        fn start(&mut self, _: Vec<Vec<Request>>, done: Rc<dyn Completion>) {
            for (group, results) in self.0.drain(..).enumerate() {
                done.executed(Executed { group, results, timing: Timing::default() });
            }
        }
    }

    /// What happens when groups of one request each end like this.
    fn check(more: &str, results: Vec<Result<Vec<Outcome>>>, expected: &str) {
        let story = Story::default();
        let pending = || {
            let reply = Reply::new_at(story.clone(), Instant::now());
            Pending { request: Request::default(), reply }
        };
        let work = InstanceWork(results.iter().map(|_| vec![pending()]).collect());
        let text = format!("name: 'm' backend: 'python' max_batch_size: 1 {more}");
        let config = read_text(&text, "f").unwrap().finish(&ServerFeatures::default()).unwrap();
        let mut model = RemoteModel::new(
            "worker".into(),
            Box::new(Ends(results)),
            Arc::new(config),
            Arc::default(),
        );
        let owner: Arc<dyn SlotOwner> = Arc::new(story.clone());
        model.start(work, OfferedSlot { owner: &owner, index: 0, begun: Instant::now() });
        assert_eq!(story.0.lock().join(" "), expected);
    }

    #[test]
    fn the_slot_of_sequences_is_released_before_their_answers_and_after_what_is_queued_anew() {
        let good = || Ok(vec![Outcome::Answered(Ok(Response::default()))]);
        let again = || Ok(vec![Outcome::Rescheduled(Request::default(), None)]);
        let bad = || Err(Error::internal("no"));
        let of_sequences = |results, expected| check("sequence_batching {}", results, expected);
        of_sequences(vec![good()], "released answered");
        of_sequences(vec![good(), good()], "answered released answered");
        // Nobody keeps what is queued anew here, and what is dropped is answered.
        of_sequences(vec![again()], "requeued answered released");
        of_sequences(vec![good(), again()], "answered requeued answered released");
        of_sequences(vec![again(), good()], "requeued answered released answered");
        of_sequences(vec![good(), bad()], "answered answered released");
        check("", vec![good(), good()], "answered answered released");
    }
}
