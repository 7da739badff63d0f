//! The step actor: how many requests of one step are in flight, and the queue of those that wait.
//!
//! It decides when a request has its turn, and no more. The tensors between steps are routed by the
//! run they belong to, on whichever thread answers: an instance's, a batcher's, or this actor's.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message};

use super::step_timing::StepTurn;
use crate::engines::PerThread;
use troupe_base::metrics::{QueuedGuard, StepMetrics, activity::EnsembleActivity};

/// How soon a queued request is let go, once its client has gone.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// The actors of one ensemble.
#[derive(Clone)]
pub(crate) struct StepAddrs {
    /// By position: one set of them for each engine thread, or a single one.
    pub(crate) sets: PerThread<Box<[Addr<StepActor>]>>,
    /// No turn is waited for: a step starts on whatever thread has its inputs, its actor being
    /// asked only where too many calls are nested.
    pub(crate) starts_anywhere: bool,
}

impl StepAddrs {
    /// The actor of a step, for the current thread.
    pub(crate) fn of(&self, step: usize) -> &Addr<StepActor> {
        &self.sets.here()[step]
    }
}

/// Runs one step for whichever request is ready for it.
pub(crate) struct StepActor {
    index: usize,
    /// Requests in flight at most; 0: no limit.
    limit: u32,
    in_flight: u32,
    /// Ready, but the window is full. Nobody's thread waits.
    queue: VecDeque<QueuedWork>,
    /// Requests whose clients may leave.
    watched: Vec<Weak<dyn LongRequest>>,
    /// The queue and the watched requests are looked through before long.
    is_sweep_due: bool,
    live: Arc<EnsembleActivity>,
}

/// What a step actor runs: a run with its tensors, or a stream with its next request.
pub(crate) trait StepWork: Send + Sync {
    /// Has its client gone, or an earlier iteration failed? Then it is run all the same, and ends
    /// at once.
    fn is_given_up(&self) -> bool;

    fn metrics(&self, step: usize) -> &StepMetrics;

    /// Asks the step's model, unless there is nothing to ask; says whether the request is in
    /// flight. Then `release` follows.
    fn run(self: Arc<Self>, turn: StepTurn) -> bool;
}

/// All inputs of a step are there.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StepReady {
    pub(crate) of: Arc<dyn StepWork>,
    /// Since then.
    pub(crate) ready: Instant,
}

/// Work that waits for room.
struct QueuedWork {
    work: StepReady,
    since: Instant,
    /// Held for its drop.
    _counted: QueuedGuard,
}

/// A request has left the window.
#[derive(Message)]
#[rtype(result = "()")]
struct Released;

/// A request that may wait long for its client.
pub(crate) trait LongRequest: Send + Sync {
    /// Ends it if its client has gone; says whether that is so.
    fn end_if_stopped(&self) -> bool;

    /// Goes on where it waited for room.
    fn resume(self: Arc<Self>);
}

/// A request needs somebody to look after it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) enum WatchRequest {
    /// Its client may leave.
    Begin(Weak<dyn LongRequest>),
    /// There may be room for more iterations.
    Resume(Arc<dyn LongRequest>),
}

impl StepActor {
    /// At most `limit` requests are in flight; 0: no limit.
    pub(crate) fn new(index: usize, limit: u32, live: Arc<EnsembleActivity>) -> StepActor {
        let (queue, watched) = (VecDeque::new(), Vec::new());
        StepActor { index, limit, in_flight: 0, queue, watched, is_sweep_due: false, live }
    }

    fn run(&mut self, StepReady { of, ready }: StepReady, waited: Duration) {
        let has_window = self.limit != 0;
        let now = Instant::now();
        let is_in_flight = of.run(StepTurn { step: self.index, ready, now, waited, has_window });
        // Without a limit nobody counts it down.
        self.in_flight += u32::from(is_in_flight && has_window);
    }

    fn show_queue(&self) {
        self.live.steps[self.index].set_waiting(self.queue.len());
    }

    fn sweep_later(&mut self, ctx: &mut Context<Self>) {
        if !self.is_sweep_due {
            self.is_sweep_due = true;
            ctx.run_later(SWEEP_INTERVAL, Self::sweep);
        }
    }

    /// Ends what waits for a client that has gone: it may hold credit that others wait for.
    fn sweep(&mut self, ctx: &mut Context<Self>) {
        self.is_sweep_due = false;
        let is_left = |request: &Weak<dyn LongRequest>| {
            request.upgrade().is_some_and(|request| !request.end_if_stopped())
        };
        self.watched.retain(is_left);
        let is_given_up = |queued: &QueuedWork| queued.work.of.is_given_up();
        let (gone, waiting): (Vec<QueuedWork>, _) = self.queue.drain(..).partition(is_given_up);
        self.queue = waiting.into();
        self.show_queue();
        gone.into_iter().for_each(|queued| self.run(queued.work, queued.since.elapsed()));
        if !self.queue.is_empty() || !self.watched.is_empty() {
            self.sweep_later(ctx);
        }
    }
}

impl Actor for StepActor {
    type Context = Context<Self>;
}

impl Handler<StepReady> for StepActor {
    type Result = ();

    fn handle(&mut self, work: StepReady, ctx: &mut Self::Context) {
        if self.limit != 0 && self.limit <= self.in_flight {
            let (since, counted) = (Instant::now(), work.of.metrics(self.index).waits());
            self.queue.push_back(QueuedWork { work, since, _counted: counted });
            self.show_queue();
            self.sweep_later(ctx);
        } else {
            self.run(work, Duration::ZERO);
        }
    }
}

impl Handler<Released> for StepActor {
    type Result = ();

    fn handle(&mut self, _: Released, _: &mut Self::Context) {
        self.in_flight -= 1;
        while self.in_flight < self.limit {
            let Some(next) = self.queue.pop_front() else { return };
            self.show_queue();
            self.run(next.work, next.since.elapsed());
        }
    }
}

impl Handler<WatchRequest> for StepActor {
    type Result = ();

    fn handle(&mut self, watch: WatchRequest, ctx: &mut Self::Context) {
        match watch {
            WatchRequest::Begin(request) => {
                self.watched.push(request);
                self.sweep_later(ctx);
            }
            WatchRequest::Resume(request) => request.resume(),
        }
    }
}

/// The model has answered: makes room in the step's window, if it has one. Called once it is known
/// whether what waits for room is still needed.
pub(crate) fn release(steps: &StepAddrs, turn: &StepTurn) {
    if turn.has_window {
        steps.of(turn.step).do_send(Released);
    }
}
