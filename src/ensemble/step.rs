//! The step actor: its window of work in flight, and the way from one step to the next.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Context, Handler, Message};

use super::{
    flow::Flow,
    parts::{self, Fit},
    plan::Plan,
    run::{Ready, Run},
    turn::Turn,
};
use crate::{
    error::{Error, Result},
    request::{Answer, Reply, Response},
    statistics::Timing,
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
    pub(super) waiting: VecDeque<Work>,
    /// Requests whose clients may leave.
    pub(super) watched: Vec<Weak<Flow>>,
    /// What waits and is watched is looked through before long.
    pub(super) is_swept: bool,
}

/// All inputs of this step are there.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum Work {
    /// For a step that answers once.
    Run(Arc<Run>),
    /// For a decoupled one.
    Turn(Box<Turn>),
}

impl Work {
    /// Its client has gone, or an earlier iteration failed.
    pub(super) fn is_needless(&self) -> bool {
        match self {
            Work::Run(run) => run.is_needless(),
            Work::Turn(turn) => turn.flow.context.is_cancelled() || turn.flow.is_over(),
        }
    }
}

/// A request has left the window.
#[derive(Message)]
#[rtype(result = "()")]
struct Left;

/// Tells steps that they can start.
pub(super) fn start(run: &Arc<Run>, ready: Ready) {
    for index in ready {
        if run.plan.steps[index].is_decoupled {
            run.ask(index);
        } else {
            run.team[index].do_send(Work::Run(run.clone()));
        }
    }
}

impl Step {
    pub(super) fn work(&mut self, work: Work) {
        match work {
            Work::Run(run) => self.run(run),
            Work::Turn(turn) => {
                let has_run = turn.run(self.limit != 0);
                self.in_flight += u32::from(has_run && self.limit != 0);
            }
        }
    }

    fn run(&mut self, run: Arc<Run>) {
        let step = &run.plan.steps[self.index];
        let Some(request) = run.request(self.index) else { return };
        if run.context.is_cancelled() {
            run.step_done(self.index, 0, (Err(Error::cancelled()), Instant::now()));
            return;
        }
        let (fit, batch) = parts::fit(step.model.config.max_batch_size, &request);
        if fit == Fit::Nothing {
            let empty = parts::empty(&step.model.config);
            let ready = run.step_done(self.index, batch, (empty, Instant::now()));
            return start(&run, ready);
        }
        // Without a limit nobody counts it down.
        self.in_flight += u32::from(self.limit != 0);
        let since = Instant::now();
        let (has_window, is_measured) = (self.limit != 0, !run.context.is_warmup);
        let stay = Stay { index: self.index, since, has_window, is_measured };
        stay.begin(&run.plan);
        let reply = Reply::new_at(StepAnswer { stay, batch, run: run.clone() }, since);
        match fit {
            Fit::Parts => parts::infer(&step.model, request, reply),
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
            self.waiting.push_back(work);
            self.sweep_later(ctx);
        } else {
            self.work(work);
        }
    }
}

impl Handler<Left> for Step {
    type Result = ();

    fn handle(&mut self, _: Left, _: &mut Self::Context) {
        self.in_flight -= 1;
        while self.in_flight < self.limit {
            let Some(next) = self.waiting.pop_front() else { return };
            self.work(next);
        }
    }
}

/// One request at a step's model.
pub(super) struct Stay {
    pub(super) index: usize,
    pub(super) since: Instant,
    /// It takes room in the window of the step.
    pub(super) has_window: bool,
    pub(super) is_measured: bool,
}

impl Stay {
    pub(super) fn begin(&self, plan: &Plan) {
        if self.is_measured {
            plan.steps[self.index].metrics.started();
        }
    }

    /// The model has answered; `timing` is that of a good answer.
    pub(super) fn end(&self, plan: &Plan, timing: Option<&Timing>, now: Instant) {
        let metrics = &plan.steps[self.index].metrics;
        match timing {
            _ if !self.is_measured => (),
            Some(timing) => {
                metrics.finished(timing.queue, now.saturating_duration_since(self.since));
            }
            None => metrics.failed(),
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
        self.stay.end(plan, result.as_ref().ok().map(|it| &it.timing), now);
        let ready = self.run.step_done(self.stay.index, self.batch, (result, now));
        self.stay.leave(team);
        start(&self.run, ready);
    }
}
