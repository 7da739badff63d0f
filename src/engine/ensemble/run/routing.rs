//! Routes the tensors of one run from step to step: who can start, what it reads, the end.
//!
//! A run is one request on its way through a plan, or one iteration of a stream. Whoever answers
//! for a step calls `Run::step_done` on its own thread; a lock is held for that long.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use smallvec::{SmallVec, smallvec};

use super::{
    continuation::Continuation,
    missing, sequence,
    slots::{HeldTensor, RunInputs, Slots},
    step_actor::StepAddrs,
};
use crate::ensemble::plan::{Plan, Route, SlotIndex};
use troupe_base::{
    error::{Error, Result},
    request::{Context, Request, Response, Wanted},
    statistics::Timing,
    tap::TapRecorder,
    tensor::{Tensor, adapt_batch_dim},
};

/// Positions of steps that can start.
pub(super) type Ready = SmallVec<[usize; 8]>;

/// What a run is begun with, beside its tensors.
pub(crate) struct RunSetup {
    pub(crate) plan: Arc<Plan>,
    pub(crate) step_addrs: StepAddrs,
    pub(crate) context: Arc<Context>,
    /// The steps to run.
    pub(crate) route: Route,
    /// Outputs of the ensemble.
    pub(crate) wanted: Wanted,
    /// Somebody captures the tensors of this request.
    pub(crate) tap: Option<TapRecorder>,
    /// The decoupled step that left outputs out, and which instance of it that was.
    pub(crate) left_out: Option<(usize, Arc<str>)>,
    /// The steps' busy times are added up for the continuation.
    pub(crate) is_timed: bool,
}

/// Shared by all messages about one request, or about one of its iterations.
pub(crate) struct Run {
    pub(super) plan: Arc<Plan>,
    /// Kept: an actor whose last address is dropped stops, mail or no mail.
    pub(super) step_addrs: StepAddrs,
    pub(super) context: Arc<Context>,
    tap: Option<TapRecorder>,
    state: Mutex<RunState>,
}

struct RunState {
    slots: Slots,
    /// For each step, how many steps must finish before it can start.
    waits_for: SmallVec<[u16; 8]>,
    live: Arc<[bool]>,
    /// Steps that have not finished.
    left: usize,
    wanted: Wanted,
    timing: Timing,
    /// For each step, how long the steps were busy without which it could not start; empty where
    /// nobody looks.
    busy: SmallVec<[Duration; 8]>,
    /// Steps that left outputs out, and which instance of them it was.
    left_out: Vec<(usize, Arc<str>)>,
    /// Taken by the first failure or by the last step.
    continuation: Option<Box<dyn Continuation>>,
}

/// A good answer of a step.
struct StepOutput {
    response: Response,
    /// The batch size of the step's request.
    batch: u32,
    /// What it says of sequences.
    sequence: Option<Arc<Context>>,
}

/// How a run ends: with the outputs of all steps, or with the first failure.
#[must_use]
enum RunEnd {
    Answer { continuation: Box<dyn Continuation>, response: Response, busy: Duration, now: Instant },
    Failure { continuation: Box<dyn Continuation>, error: Error, now: Instant },
}

impl Run {
    /// Fills the slots with the first tensors. Also says which steps can start at once.
    pub(super) fn begin(
        setup: RunSetup,
        inputs: RunInputs<impl Iterator<Item = (SlotIndex, Option<Tensor>)>>,
        continuation: Box<dyn Continuation>,
        now: Instant,
    ) -> (Arc<Run>, Ready) {
        let RunSetup { plan, step_addrs, context, route, wanted, tap, left_out, is_timed } = setup;
        let RunInputs { tensors, batch, sequence } = inputs;
        let mut slots = Slots::new(&route.readers);
        for (slot, tensor) in tensors {
            let sequence = sequence.clone();
            slots.fill(slot, tensor.map(|tensor| HeldTensor { tensor, batch, sequence }));
        }
        if !context.is_warmup {
            slots.tensors().for_each(|(slot, tensor)| {
                plan.live.record_tensor(slot, tensor.data().len(), now);
            });
        }
        let steps = 0..plan.steps.len();
        let ready = steps.filter(|step| route.live[*step] && route.waits_for[*step] == 0).collect();
        let busy = match is_timed {
            true => smallvec![Duration::ZERO; plan.steps.len()],
            false => SmallVec::new(),
        };
        let state = RunState {
            slots,
            waits_for: route.waits_for,
            live: route.live,
            left: route.steps,
            wanted,
            timing: Timing::default(),
            busy,
            left_out: left_out.into_iter().collect(),
            continuation: Some(continuation),
        };
        let run = Run { plan, step_addrs, context, tap, state: Mutex::new(state) };
        if route.steps == 0 {
            let mut state = run.state.lock();
            let end = run.finish(&mut state, Duration::ZERO, Instant::now());
            run.end(state, end);
        }
        (Arc::new(run), ready)
    }

    /// Whether the tensors it still makes would be of use to nobody.
    pub(super) fn is_unwanted(&self) -> bool {
        self.context.is_stopped() || !self.state.lock().is_wanted()
    }

    /// Ends with the request of a decoupled step, the only step left.
    pub(super) fn call_decoupled(&self, index: usize) {
        let Some(request) = self.request(index) else { return };
        let mut state = self.state.lock();
        let (continuation, timing) = (state.continuation.take(), state.timing);
        drop(state);
        if let Some(continuation) = continuation {
            continuation.call(request, timing);
        }
    }

    /// Goes on with what has ended, if it has. Lets go of the lock before: whoever is answered may
    /// run any code, the rest of another ensemble for one.
    fn end(&self, state: MutexGuard<'_, RunState>, end: Option<RunEnd>) {
        drop(state);
        match end {
            Some(RunEnd::Answer { continuation, response, busy, now }) => {
                continuation.answer(&self.plan, response, busy, now);
            }
            Some(RunEnd::Failure { continuation, error, now }) => continuation.fail(error, now),
            None => (),
        }
    }

    /// The request of a step whose producers have all finished; `None` once the run has failed.
    pub(super) fn request(&self, index: usize) -> Option<Request> {
        let step = &self.plan.steps[index];
        let config = &step.model.config;
        let mut state = self.state.lock();
        if !state.is_wanted() {
            return None;
        }
        let mut inputs = Vec::with_capacity(step.inputs.len());
        let mut sequence = None;
        let mut missing = None;
        for (slot, input) in step.inputs.iter().zip(&config.inputs) {
            let held = slot.and_then(|slot| state.slots.read(slot));
            if held.is_none() && !input.optional {
                missing = missing.or(*slot);
            }
            inputs.push(held.map(|held| {
                // When several producers say something, the first counts.
                sequence = sequence.take().or(held.sequence);
                adapt_batch_dim(held.tensor, held.batch, 0 < config.max_batch_size, &input.dims)
            }));
        }
        let wanted = step.wanted.clone();
        let context = sequence.unwrap_or_else(|| self.context.clone());
        let mut request = Request { context, inputs, wanted, batch: 0 };
        if let Some((maker, source)) =
            missing.and_then(|slot| missing::input(&self.plan, index, slot, &mut request))
        {
            let end = self.fail(&mut state, maker, source, Instant::now());
            self.end(state, end);
            return None;
        }
        Some(request)
    }

    /// Takes in what a step answered to a batch, after it was busy so long. Says which steps can
    /// start now.
    pub(super) fn step_done(
        &self,
        index: usize,
        batch: u32,
        busy: Duration,
        result: Result<Response>,
        now: Instant,
    ) -> Ready {
        let mut state = self.state.lock();
        if state.continuation.is_none() {
            // A sibling has failed and answered.
            return Ready::new();
        }
        let result = result.and_then(|response| {
            let sequence = sequence::context_after(&self.context, &response.parameters)?;
            Ok((response, sequence))
        });
        let (response, sequence) = match result {
            Ok(answered) => answered,
            Err(source) => {
                let end = self.fail(&mut state, index, source, now);
                self.end(state, end);
                return Ready::new();
            }
        };
        state.timing += response.timing;
        self.fill_slots(&mut state, index, StepOutput { response, batch, sequence }, now);
        state.note_held();
        state.left -= 1;
        let busy = busy + state.busy.get(index).copied().unwrap_or_default();
        if state.left == 0 {
            let end = self.finish(&mut state, busy, now);
            self.end(state, end);
            return Ready::new();
        }
        let mut ready = Ready::new();
        for &next in &self.plan.steps[index].unblocks {
            state.waits_for[next] -= 1;
            if state.waits_for[next] == 0 && state.live[next] {
                if let Some(before) = state.busy.get_mut(next) {
                    *before = busy;
                }
                ready.push(next);
            }
        }
        ready
    }

    /// The outputs of a step, in the slots they are for; what it did not give is absent.
    fn fill_slots(&self, state: &mut RunState, index: usize, output: StepOutput, now: Instant) {
        let StepOutput { mut response, batch, sequence } = output;
        let writes = &self.plan.steps[index].outputs;
        if let Some(tap) = &self.tap {
            tap.outputs(writes, &response.outputs, batch);
        }
        for (position, slot) in writes {
            let tensor = response.outputs.get_mut(*position).and_then(Option::take);
            if tensor.is_none() {
                let instance = response.left_out_by.take();
                state.left_out.extend(instance.map(|name| (index, name)));
            }
            let bytes = tensor.as_ref().map_or(0, |tensor| tensor.data().len());
            let sequence = sequence.clone();
            let held = tensor.map(|tensor| HeldTensor { tensor, batch, sequence });
            if state.slots.fill(*slot, held) && !self.context.is_warmup {
                self.plan.live.record_tensor(*slot, bytes, now);
            }
        }
    }

    /// The first failure answers at once, or in its turn; siblings that have not started are
    /// skipped.
    fn fail(
        &self,
        state: &mut RunState,
        index: usize,
        source: Error,
        now: Instant,
    ) -> Option<RunEnd> {
        let continuation = state.continuation.take()?;
        if !self.context.is_iteration {
            self.context.cancel();
        }
        state.slots.clear();
        let source = match state.left_out.iter().find(|(step, _)| *step == index) {
            Some((_, name)) => source.at_instance(name),
            None => source,
        };
        if let Some(tap) = &self.tap {
            tap.failed(index, &source);
        }
        let error = self.plan.at_step(index, source, &self.context);
        Some(RunEnd::Failure { continuation, error, now })
    }

    /// The last step has ended; `busy` is how long the steps were that it and all waited for.
    fn finish(&self, state: &mut RunState, busy: Duration, now: Instant) -> Option<RunEnd> {
        if state.continuation.as_ref().is_some_and(|continuation| continuation.needs_outputs())
            && let Some((maker, source)) =
                missing::outputs(&self.plan, &state.wanted, |slot| state.slots.is_held(slot))
        {
            return self.fail(state, maker, source, now);
        }
        let continuation = state.continuation.take()?;
        let response = self.outputs(state);
        Some(RunEnd::Answer { continuation, response, busy, now })
    }

    /// The outputs of the ensemble that this run was to make.
    fn outputs(&self, state: &mut RunState) -> Response {
        let config = &self.plan.config;
        let RunState { slots, wanted, timing, .. } = state;
        let mut sequence = None;
        let mut outputs = Vec::with_capacity(config.outputs.len());
        for (index, (slot, output)) in self.plan.outputs.iter().zip(&config.outputs).enumerate() {
            let held = slots.take(*slot).filter(|_| wanted.has(index));
            if held.is_none() && wanted.has(index) {
                tracing::debug!("Composing models did not output tensor {}", output.name);
            }
            outputs.push(held.map(|held| {
                sequence = sequence.take().or(held.sequence);
                let dims = output.reshape.as_ref().unwrap_or(&output.dims);
                adapt_batch_dim(held.tensor, held.batch, 0 < config.max_batch_size, dims)
            }));
        }
        slots.clear();
        let parameters = sequence::parameters(sequence.as_deref().unwrap_or(&self.context));
        Response { outputs, parameters, timing: *timing, ..Response::default() }
    }
}

impl RunState {
    /// An iteration costs as much as the tensors it holds at once.
    fn note_held(&mut self) {
        if let Some(continuation) = &mut self.continuation {
            continuation.note_held(&mut self.slots.tensors().map(|(_, tensor)| tensor));
        }
    }

    /// It has not failed, nor has an iteration before it.
    fn is_wanted(&self) -> bool {
        self.continuation.as_ref().is_some_and(|continuation| continuation.is_wanted())
    }
}
