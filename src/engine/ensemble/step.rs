//! The step actor: its window of work in flight, and the way from one step to the next.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Context, Handler, Message};

use super::{
    flow::Flow,
    plan::Plan,
    run::{Ready, Run},
    split::{self, BatchFit},
    turn::Turn,
};
use troupe_base::{
    error::{Error, Result},
    metrics::{QueuedGuard, StepDurations, StepMetrics, activity::EnsembleActivity},
    request::{Answer, Reply, Response},
    statistics::{AgeToken, Timing},
};

/// How soon is let go what waits, once its client has gone.
pub(super) const SWEEP: Duration = Duration::from_millis(100);

/// The actors of one ensemble, by position.
pub(super) type Team = Arc<[Addr<Step>]>;

/// Runs one step for whichever request is ready for it.
pub(super) struct Step {
    pub(super) index: usize,
    /// Requests in flight at most; 0: no limit.
    pub(super) limit: u32,
    pub(super) in_flight: u32,
    /// Ready, but the window is full. Nobody's thread waits.
    pub(super) waiting: VecDeque<Late>,
    /// Requests whose clients may leave.
    pub(super) watched: Vec<Weak<Flow>>,
    /// What waits and is watched is looked through before long.
    pub(super) is_swept: bool,
    pub(super) live: Arc<EnsembleActivity>,
}

/// All inputs of this step are there.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum Work {
    /// For a step that answers once; its inputs are there since then.
    Run(Arc<Run>, Instant),
    /// For a decoupled one.
    Turn(Box<Turn>),
}

impl Work {
    /// Its client has gone, or an earlier iteration failed.
    pub(super) fn is_needless(&self) -> bool {
        match self {
            Work::Run(run, _) => run.is_needless(),
            Work::Turn(turn) => turn.flow.context.is_stopped() || turn.flow.is_over(),
        }
    }

    fn metrics(&self, index: usize) -> &StepMetrics {
        let plan = match self {
            Work::Run(run, _) => &run.plan,
            Work::Turn(turn) => &turn.flow.plan,
        };
        &plan.steps[index].metrics
    }
}

/// Work that waits for room.
pub(super) struct Late {
    pub(super) work: Work,
    pub(super) since: Instant,
    /// Held for its drop.
    _counted: QueuedGuard,
}

/// A request has left the window.
#[derive(Message)]
#[rtype(result = "()")]
struct Left;

/// Tells steps that they can start, as their inputs are there `now`.
pub(super) fn start(run: &Arc<Run>, ready: Ready, now: Instant) {
    for index in ready {
        if run.plan.steps[index].is_decoupled {
            run.ask(index);
        } else {
            run.team[index].do_send(Work::Run(run.clone(), now));
        }
    }
}

impl Step {
    pub(super) fn work(&mut self, work: Work, waited: Duration) {
        match work {
            Work::Run(run, ready) => self.run(run, ready, waited),
            Work::Turn(turn) => {
                let has_run = turn.run(self.limit != 0, waited);
                self.in_flight += u32::from(has_run && self.limit != 0);
            }
        }
    }

    fn run(&mut self, run: Arc<Run>, ready: Instant, waited: Duration) {
        let step = &run.plan.steps[self.index];
        let Some(mut request) = run.request(self.index) else { return };
        if let Some(error) = run.context.stopped() {
            let spent = (0, Duration::ZERO);
            run.step_done(self.index, spent, (Err(error), Instant::now()));
            return;
        }
        let (fit, batch) = split::batch_fit(step.model.config.max_batch_size, &request);
        if fit == BatchFit::Empty {
            let empty = split::empty(&step.model.config);
            let now = Instant::now();
            let ready = run.step_done(self.index, (batch, Duration::ZERO), (empty, now));
            return start(&run, ready, now);
        }
        if let Some(span) = &request.context.span {
            request.context = Arc::new(request.context.under(span.at_step(self.index)));
        }
        // Without a limit nobody counts it down.
        self.in_flight += u32::from(self.limit != 0);
        let since = Instant::now();
        let (has_window, is_measured) = (self.limit != 0, !run.context.is_warmup);
        let came = None;
        let mut stay = Stay { index: self.index, ready, waited, has_window, is_measured, came };
        stay.begin(&run.plan, since);
        let reply = Reply::new_at(StepAnswer { stay, batch, run: run.clone() }, since);
        match fit {
            BatchFit::Split => split::infer(&step.model, request, reply),
            _ => step.model.infer(request, reply),
        }
    }
}

impl Actor for Step {
    type Context = Context<Self>;
}

impl Handler<Work> for Step {
    type Result = ();

    fn handle(&mut self, work: Work, ctx: &mut Self::Context) {
        if self.limit != 0 && self.limit <= self.in_flight {
            let (since, counted) = (Instant::now(), work.metrics(self.index).waits());
            self.waiting.push_back(Late { work, since, _counted: counted });
            self.live.steps[self.index].set_waiting(self.waiting.len());
            self.sweep_later(ctx);
        } else {
            self.work(work, Duration::ZERO);
        }
    }
}

impl Handler<Left> for Step {
    type Result = ();

    fn handle(&mut self, _: Left, _: &mut Self::Context) {
        self.in_flight -= 1;
        while self.in_flight < self.limit {
            let Some(next) = self.waiting.pop_front() else { return };
            self.live.steps[self.index].set_waiting(self.waiting.len());
            self.work(next.work, next.since.elapsed());
        }
    }
}

/// One request at a step's model.
pub(super) struct Stay {
    pub(super) index: usize,
    /// Its inputs were there.
    pub(super) ready: Instant,
    /// For room in the window.
    pub(super) waited: Duration,
    /// It takes room in the window of the step.
    pub(super) has_window: bool,
    pub(super) is_measured: bool,
    /// Where it is counted.
    pub(super) came: Option<AgeToken>,
}

impl Stay {
    pub(super) fn begin(&mut self, plan: &Plan, now: Instant) {
        if self.is_measured {
            self.came = plan.steps[self.index].metrics.started(now);
            plan.live.steps[self.index].request_started();
        }
    }

    /// The model has answered; `timing` is that of a good answer. Says how long the step was busy,
    /// waiting for its model or in it, if anybody looks.
    pub(super) fn end(&self, plan: &Plan, timing: Option<&Timing>, now: Instant) -> Duration {
        let metrics = &plan.steps[self.index].metrics;
        let Some(timing) = timing else {
            metrics.failed(self.came);
            return Duration::ZERO;
        };
        if self.came.is_none() {
            return Duration::ZERO;
        }
        let whole = now.saturating_duration_since(self.ready);
        let spent = StepDurations::of(whole, self.waited + timing.queue, timing.compute());
        metrics.finished(self.came, &spent);
        spent.queue + spent.compute
    }

    /// The same for the live picture, which also tells how requests failed.
    pub(super) fn tell(&self, plan: &Plan, error: Option<&Error>, now: Instant) {
        if self.is_measured {
            let elapsed = now.saturating_duration_since(self.ready);
            plan.live.steps[self.index].ended(error, elapsed, now);
        }
    }

    /// Makes room, once it is known whether what waits for it is still needed.
    pub(super) fn leave(&self, team: &Team) {
        if self.has_window {
            team[self.index].do_send(Left);
        }
    }
}

/// Waits for the step's model; then the tensors go straight on, from whatever thread answers.
struct StepAnswer {
    stay: Stay,
    batch: u32,
    run: Arc<Run>,
}

impl Answer for StepAnswer {
    fn answer(self: Box<Self>, result: Result<Response>, now: Instant) {
        let Run { plan, team, .. } = &*self.run;
        let busy = self.stay.end(plan, result.as_ref().ok().map(|it| &it.timing), now);
        self.stay.tell(plan, result.as_ref().err(), now);
        let ready = self.run.step_done(self.stay.index, (self.batch, busy), (result, now));
        self.stay.leave(team);
        start(&self.run, ready, now);
    }
}
