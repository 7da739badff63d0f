//! Iterations of a stream: a run for each response of a decoupled step, begun as there is room.
//!
//! An iteration is a run of the steps of one stage. It ends with the request of the next decoupled
//! step, which reads the iterations one after the other, or with a response to the client.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

use super::{
    iteration_window::cost,
    stage::{BegunIteration, EndedIteration, IterationEnd, StageInput, StageState},
    stream_run::{StreamRun, StreamState},
};
use crate::ensemble::{
    plan::{Plan, StageIndex},
    run::{self, Continuation, LongRequest, RunInputs, RunSetup, StepAddrs, WatchRequest},
};
use troupe_base::{
    error::{Error, Result},
    request::{Credit, Reply, Request, Response},
    statistics::{Statistics, Timing},
    tensor::Tensor,
};

/// Starts a request of a client.
pub(crate) fn start(
    plan: &Arc<Plan>,
    step_addrs: &StepAddrs,
    stats: &Arc<Statistics>,
    request: Request,
    reply: Reply,
) {
    let routes = plan.routes(&request.wanted).into_owned();
    let mut stages: Vec<_> = routes.iter().map(|_| StageState::new(plan.window_bytes)).collect();
    // What the client sent is the one iteration of the first stage.
    let Some(number) = stages[0].begin_only() else { return };
    let (timing, reply) = (Timing::default(), Some(reply));
    let stream = Arc::new(StreamRun {
        plan: plan.clone(),
        step_addrs: step_addrs.clone(),
        context: Arc::new(request.context.in_iterations()),
        routes,
        wanted: request.wanted.clone(),
        tap: plan.taps.begin(&request, &plan.inputs),
        stats: stats.clone(),
        rows: request.counted_rows(),
        untaken: AtomicU64::new(0),
        is_waiting: AtomicBool::new(false),
        state: Mutex::new(StreamState { stages, timing, is_starting: false, reply }),
    });
    let stream_weak = Arc::downgrade(&stream);
    stream.watch(WatchRequest::Begin(stream_weak));
    let setup = RunSetup { tap: stream.tap.clone(), ..stream.setup(0) };
    let tensors = plan.inputs.iter().copied().zip(request.inputs);
    let inputs = RunInputs { tensors, batch: request.batch, sequence: None };
    let iteration = Iteration { stream, stage: 0, number, credit: None, peak: 0 };
    run::start(setup, inputs, Box::new(iteration), Instant::now());
}

/// For whom the run of an iteration is.
struct Iteration {
    stream: Arc<StreamRun>,
    stage: StageIndex,
    /// Counted from 0 within the stage.
    number: u64,
    /// That of the responses it comes from; whoever made them makes no more than it has credit for.
    credit: Option<Arc<Credit>>,
    /// The most it has cost at once.
    peak: u64,
}

impl Iteration {
    fn finish(self, result: Result<(IterationEnd, u64)>, timing: Timing, now: Instant) {
        let Iteration { stream, stage, number, credit, peak } = self;
        let result = result.map(|(outcome, cost)| EndedIteration { outcome, credit, cost });
        let mut state = stream.state.lock();
        state.timing += timing;
        state.stages[stage].finish(number, result, peak);
        stream.advance(&mut state, now);
        drop(state);
        stream.resume();
    }
}

impl Continuation for Iteration {
    fn is_wanted(&self) -> bool {
        self.stream.state.lock().stages[self.stage].is_wanted(self.number)
    }

    fn needs_outputs(&self) -> bool {
        false
    }

    fn note_held(&mut self, tensors: &mut dyn Iterator<Item = &Tensor>) {
        self.peak = self.peak.max(cost(tensors));
    }

    /// It ends with a response to the client, who gives its credit back.
    fn answer(self: Box<Self>, _: &Plan, mut response: Response, _: Duration, now: Instant) {
        let timing = mem::take(&mut response.timing);
        let cost = cost(response.outputs.iter().flatten());
        self.finish(Ok((IterationEnd::Response(response), cost)), timing, now);
    }

    /// It ends with a request to the next decoupled step; its other steps took so long.
    fn call(self: Box<Self>, request: Request, timing: Timing) {
        let cost = cost(request.inputs.iter().flatten());
        self.finish(Ok((IterationEnd::Call(request), cost)), timing, Instant::now());
    }

    /// It failed, and with it the request, once those before it have ended.
    fn fail(self: Box<Self>, error: Error, now: Instant) {
        self.finish(Err(error), Timing::default(), now);
    }
}

impl StreamRun {
    /// A response of the decoupled step before this stage: one more iteration, at once or in its
    /// turn.
    pub(super) fn add(self: &Arc<Self>, stage: StageIndex, input: StageInput) {
        let mut state = self.state.lock();
        if state.reply.is_some() {
            state.stages[stage].push(input);
            self.start_ready(state);
        }
    }

    /// The decoupled step that reads this stage has given all its responses to one call; no call
    /// follows if that was the last.
    pub(super) fn call_ended(
        self: &Arc<Self>,
        stage: StageIndex,
        is_last: bool,
        timing: Timing,
        now: Instant,
    ) {
        let mut state = self.state.lock();
        state.timing += timing;
        state.stages[stage].is_busy = false;
        if is_last && let Some((_, feeds)) = self.plan.reader(stage) {
            state.stages[feeds].end(Ok(()));
        }
        self.advance(&mut state, now);
        self.start_ready(state);
    }

    /// Begins iterations as far as there is room, unless another thread is at it and will see to
    /// it.
    fn start_ready(self: &Arc<Self>, mut state: MutexGuard<'_, StreamState>) {
        while !state.is_starting
            && state.reply.is_some()
            && let Some((stage, begun)) = self.begin_next(&mut state)
        {
            state.is_starting = true;
            MutexGuard::unlocked(&mut state, || self.start_iteration(stage, begun));
            state.is_starting = false;
        }
    }

    fn start_iteration(
        self: &Arc<Self>,
        stage: StageIndex,
        BegunIteration { input, number }: BegunIteration,
    ) {
        let StageInput { response, batch, sequence, credit, .. } = input;
        let iteration = Iteration { stream: self.clone(), stage, number, credit, peak: 0 };
        // Only the first stage has no source, and no response begins it.
        let Some(source) = self.plan.stages[stage].source else { return };
        let writes = &self.plan.steps[source].outputs;
        let mut outputs = response.outputs;
        let tap = self.tap.as_ref().map(|tap| tap.iteration(number));
        if let Some(tap) = &tap {
            tap.outputs(writes, &outputs, batch);
        }
        let left_out = response.left_out_by.map(|name| (source, name));
        let setup = RunSetup { tap, left_out, ..self.setup(stage) };
        let mut take = |output: usize| outputs.get_mut(output).and_then(Option::take);
        let tensors = writes.iter().map(|(output, slot)| (*slot, take(*output)));
        let inputs = RunInputs { tensors, batch, sequence };
        run::start(setup, inputs, Box::new(iteration), Instant::now());
    }

    fn setup(&self, stage: StageIndex) -> RunSetup {
        RunSetup {
            plan: self.plan.clone(),
            step_addrs: self.step_addrs.clone(),
            context: self.context.clone(),
            route: self.routes[stage].clone(),
            wanted: self.wanted.clone(),
            tap: None,
            left_out: None,
            is_timed: false,
        }
    }
}

impl LongRequest for StreamRun {
    fn end_if_stopped(&self) -> bool {
        let stopped = self.context.stopped();
        let is_stopped = stopped.is_some();
        if let Some(error) = stopped {
            self.end(&mut self.state.lock(), Err(error), Instant::now());
        }
        is_stopped
    }

    fn resume(self: Arc<Self>) {
        self.start_ready(self.state.lock());
    }
}
