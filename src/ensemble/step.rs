//! The step actor: its window of work in flight, and the way from one step to the next.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use actix::{Actor, Addr, Context, Handler, Message};

use super::{
    parts::{self, Fit},
    run::{Ready, Run},
};
use crate::{
    error::{Error, Result},
    request::{Answer, Reply, Response},
};

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
}

/// All inputs of this step are there.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Work(Arc<Run>);

/// A request has left the window.
#[derive(Message)]
#[rtype(result = "()")]
struct Left;

/// Tells steps that they can start.
pub(super) fn start(run: &Arc<Run>, ready: Ready) {
    for index in ready {
        run.team[index].do_send(Work(run.clone()));
    }
}

impl Step {
    fn run(&mut self, Work(run): Work) {
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
        if !run.context.is_warmup {
            step.metrics.started();
        }
        let since = Instant::now();
        let answer = StepAnswer {
            index: self.index,
            batch,
            since,
            has_window: self.limit != 0,
            run: run.clone(),
        };
        let reply = Reply::new_at(answer, since);
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

    fn handle(&mut self, work: Work, _: &mut Self::Context) {
        if self.limit != 0 && self.limit <= self.in_flight {
            self.waiting.push_back(work);
        } else {
            self.run(work);
        }
    }
}

impl Handler<Left> for Step {
    type Result = ();

    fn handle(&mut self, _: Left, _: &mut Self::Context) {
        self.in_flight -= 1;
        while self.in_flight < self.limit {
            let Some(next) = self.waiting.pop_front() else { return };
            self.run(next);
        }
    }
}

/// Waits for the step's model; then the tensors go straight on, from whatever thread answers.
struct StepAnswer {
    index: usize,
    batch: u32,
    since: Instant,
    has_window: bool,
    run: Arc<Run>,
}

impl Answer for StepAnswer {
    fn answer(self: Box<Self>, result: Result<Response>, now: Instant) {
        let metrics = &self.run.plan.steps[self.index].metrics;
        match &result {
            _ if self.run.context.is_warmup => (),
            Ok(response) => {
                let took = now.saturating_duration_since(self.since);
                metrics.finished(response.timing.queue, took);
            }
            Err(_) => metrics.failed(),
        }
        if self.has_window {
            self.run.team[self.index].do_send(Left);
        }
        let ready = self.run.step_done(self.index, self.batch, (result, now));
        start(&self.run, ready);
    }
}
