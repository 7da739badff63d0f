//! Runs a step that answers once, and starts the steps that its answer was the last input of.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    continuation::Continuation,
    nested_step::NestedStep,
    routing::{Ready, Run, RunSetup},
    slots::RunInputs,
    split,
    step_actor::{StepReady, StepWork, release},
    step_timing::{StepTiming, StepTurn},
};
use crate::ensemble::plan::{SlotIndex, StepKind};
use troupe_base::{
    error::Result,
    metrics::StepMetrics,
    request::{Answer, BatchFit, Reply, Response, batch_fit},
    tensor::Tensor,
};

/// Begins a run with these tensors; all that is ready is on its way when this returns.
pub(crate) fn start(
    setup: RunSetup,
    inputs: RunInputs<impl Iterator<Item = (SlotIndex, Option<Tensor>)>>,
    continuation: Box<dyn Continuation>,
    now: Instant,
) {
    let (run, ready) = Run::begin(setup, inputs, continuation, now);
    start_steps(&run, ready, now);
}

/// Starts steps, each as its kind says, as their inputs are there `now`.
fn start_steps(run: &Arc<Run>, ready: Ready, now: Instant) {
    for index in ready {
        match run.plan.steps[index].kind {
            StepKind::Once => start_once(run, index, now),
            StepKind::Decoupled(_) => run.call_decoupled(index),
        }
    }
}

/// Starts a step right here if it need not wait for its turn, else asks its actor.
fn start_once(run: &Arc<Run>, step: usize, ready: Instant) {
    if run.step_addrs.starts_anywhere
        && let Some(_nested) = NestedStep::enter()
    {
        // Not `ready`: what the engine took since then is its overhead, not the model's time.
        let now = Instant::now();
        let turn = StepTurn { step, ready, now, waited: Duration::ZERO, has_window: false };
        // Nobody counts what is in flight.
        let _ = run.clone().run(turn);
        return;
    }
    run.step_addrs.of(step).do_send(StepReady { of: run.clone(), ready });
}

impl StepWork for Run {
    fn is_given_up(&self) -> bool {
        self.is_unwanted()
    }

    fn metrics(&self, step: usize) -> &StepMetrics {
        &self.plan.steps[step].metrics
    }

    fn run(self: Arc<Self>, turn: StepTurn) -> bool {
        let index = turn.step;
        let step = &self.plan.steps[index];
        let Some(mut request) = self.request(index) else { return false };
        if let Some(error) = self.context.stopped() {
            self.step_done(index, 0, Duration::ZERO, Err(error), Instant::now());
            return false;
        }
        let (fit, batch) = batch_fit(step.model.config.max_batch_size, &request);
        if fit == BatchFit::Empty {
            let empty = split::empty(&step.model.config);
            let now = Instant::now();
            let ready = self.step_done(index, batch, Duration::ZERO, empty, now);
            start_steps(&self, ready, now);
            return false;
        }
        if let Some(span) = &request.context.span {
            request.context = Arc::new(request.context.under(span.at_step(index)));
        }
        let since = turn.now;
        let mut timing = StepTiming::new(turn, !self.context.is_warmup);
        timing.begin(&self.plan, since);
        let reply = Reply::new_at(StepAnswer { timing, batch, run: self.clone() }, since);
        match fit {
            BatchFit::Split => split::infer(&step.model, request, reply),
            BatchFit::Fits | BatchFit::Empty => step.model.infer(request, reply),
        }
        true
    }
}

/// Waits for the step's model. Its tensors are routed on from whatever thread answers.
struct StepAnswer {
    timing: StepTiming,
    /// The rows of the step's request; 0 if its model does not batch.
    batch: u32,
    run: Arc<Run>,
}

impl Answer for StepAnswer {
    fn answer(self: Box<Self>, result: Result<Response>, now: Instant) {
        let StepAnswer { timing, batch, run } = *self;
        let busy =
            timing.end(&run.plan, result.as_ref().ok().map(|response| &response.timing), now);
        timing.show(&run.plan, result.as_ref().err(), now);
        let ready = run.step_done(timing.turn.step, batch, busy, result, now);
        release(&run.step_addrs, &timing.turn);
        start_steps(&run, ready, now);
    }
}
