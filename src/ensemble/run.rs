//! One request on its way through a plan: its tensors and counters, carried from step to step.

use std::{mem, sync::Arc, time::Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    batch,
    plan::{Plan, Slot},
    sequence,
    step::Team,
};
use crate::{
    error::{Error, Result, StepError},
    request::{Context, Reply, Request, Response},
    statistics::Timing,
    tensor::Tensor,
};

/// Positions of steps that can start.
pub(super) type Ready = SmallVec<[usize; 8]>;

/// Shared by all messages about one request.
pub(super) struct Run {
    pub(super) plan: Arc<Plan>,
    /// Kept: an actor whose last address is dropped stops, mail or no mail.
    pub(super) team: Team,
    pub(super) context: Arc<Context>,
    state: Mutex<State>,
}

struct State {
    slots: Vec<Option<Held>>,
    /// See `Route::counters`.
    counters: Vec<u16>,
    live: Arc<[bool]>,
    /// Steps that have not finished.
    left: usize,
    wanted: crate::request::Wanted,
    timing: Timing,
    /// Taken by the first failure or by the last step.
    reply: Option<Reply>,
}

/// A tensor on its way.
struct Held {
    tensor: Tensor,
    /// The batch size of the request that made it; 0: its maker does not batch, or had no rows.
    batch: u32,
    /// What its maker said of sequences.
    sequence: Option<Arc<Context>>,
}

impl Run {
    /// Lays the inputs into their slots. Also says which steps can start at once.
    pub(super) fn begin(
        plan: Arc<Plan>,
        team: Team,
        request: Request,
        reply: Reply,
    ) -> (Arc<Run>, Ready) {
        let Request { context, inputs, wanted, batch } = request;
        let route = plan.route(&wanted).into_owned();
        let mut slots: Vec<Option<Held>> = Vec::new();
        slots.resize_with(plan.slots, || None);
        let steps = plan.steps.len();
        for (slot, tensor) in plan.inputs.iter().zip(inputs) {
            // A tensor nobody reads is not kept.
            if route.counters[steps + slot] != 0 {
                slots[*slot] = tensor.map(|tensor| Held { tensor, batch, sequence: None });
            }
        }
        let ready: Ready =
            (0..steps).filter(|it| route.live[*it] && route.counters[*it] == 0).collect();
        let state = State {
            slots,
            counters: route.counters,
            live: route.live,
            left: route.steps,
            wanted,
            timing: Timing::default(),
            reply: Some(reply),
        };
        let run = Run { plan, team, context, state: Mutex::new(state) };
        if route.steps == 0 {
            run.finish(&mut run.state.lock(), Instant::now());
        }
        (Arc::new(run), ready)
    }

    /// The request of a step whose producers have all finished; `None` once the run has failed.
    pub(super) fn request(&self, index: usize) -> Option<Request> {
        let step = &self.plan.steps[index];
        let mut state = self.state.lock();
        state.reply.as_ref()?;
        let mut inputs = Vec::with_capacity(step.inputs.len());
        let mut sequence = None;
        for (position, slot) in step.inputs.iter().enumerate() {
            let held = slot.and_then(|slot| self.read(&mut state, slot));
            let config = &step.model.config;
            inputs.push(held.map(|Held { tensor, batch, sequence: said }| {
                // When several producers say something, the first counts.
                sequence = sequence.take().or(said);
                let dims = &config.inputs[position].dims;
                batch::adapt(tensor, batch, 0 < config.max_batch_size, dims)
            }));
        }
        let wanted = step.wanted.clone();
        let context = sequence.unwrap_or_else(|| self.context.clone());
        Some(Request { context, inputs, wanted, batch: 0 })
    }

    /// The last reader takes a tensor, earlier ones share it.
    fn read(&self, state: &mut State, slot: Slot) -> Option<Held> {
        let readers = &mut state.counters[self.plan.steps.len() + slot];
        *readers -= 1;
        if *readers == 0 {
            return state.slots[slot].take();
        }
        let held = state.slots[slot].as_ref()?;
        let (tensor, sequence) = (held.tensor.clone(), held.sequence.clone());
        Some(Held { tensor, batch: held.batch, sequence })
    }

    /// Takes in what a step answered. Says which steps can start now.
    pub(super) fn step_done(
        &self,
        index: usize,
        batch: u32,
        (result, now): (Result<Response>, Instant),
    ) -> Ready {
        let mut state = self.state.lock();
        if state.reply.is_none() {
            // A sibling has failed and answered.
            return Ready::new();
        }
        let result = result.and_then(|response| {
            let sequence = sequence::of_step(&self.context, &response.parameters)?;
            Ok((response, sequence))
        });
        let (response, sequence) = match result {
            Ok(it) => it,
            Err(source) => {
                self.fail(&mut state, index, (source, now));
                return Ready::new();
            }
        };
        state.timing += response.timing;
        let step = &self.plan.steps[index];
        let mut outputs = response.outputs;
        for (output, slot) in &step.outputs {
            // What the step did not give stays empty, and so is left out downstream.
            let tensor = outputs.get_mut(*output).and_then(Option::take);
            if state.counters[self.plan.steps.len() + slot] != 0 {
                let sequence = sequence.clone();
                state.slots[*slot] = tensor.map(|tensor| Held { tensor, batch, sequence });
            }
        }
        state.left -= 1;
        if state.left == 0 {
            self.finish(&mut state, now);
            return Ready::new();
        }
        let mut ready = Ready::new();
        for &next in &step.unblocks {
            state.counters[next] -= 1;
            if state.counters[next] == 0 && state.live[next] {
                ready.push(next);
            }
        }
        ready
    }

    /// The first failure answers at once; siblings that have not started are skipped.
    fn fail(&self, state: &mut State, index: usize, (source, now): (Error, Instant)) {
        let Some(reply) = state.reply.take() else { return };
        self.context.cancel();
        state.slots.clear();
        let model = &self.plan.steps[index].model;
        let at = StepError {
            ensemble: self.plan.config.name.clone(),
            step: index,
            model: model.name().clone(),
            version: model.version,
            source,
        };
        reply.answer_at(Err(Error::Step(Arc::new(at))), now);
    }

    fn finish(&self, state: &mut State, now: Instant) {
        let Some(reply) = state.reply.take() else { return };
        let mut slots = mem::take(&mut state.slots);
        let config = &self.plan.config;
        let mut sequence = None;
        let outputs = self.plan.outputs.iter().enumerate().map(|(index, slot)| {
            let held = slots[*slot].take().filter(|_| state.wanted.has(index));
            let output = &config.outputs[index];
            if held.is_none() && state.wanted.has(index) {
                tracing::debug!("Composing models did not output tensor {}", output.name);
            }
            let held = held?;
            sequence = sequence.take().or(held.sequence);
            let dims = output.reshape.as_ref().unwrap_or(&output.dims);
            Some(batch::adapt(held.tensor, held.batch, 0 < config.max_batch_size, dims))
        });
        let outputs = outputs.collect();
        let parameters = sequence::parameters(sequence.as_deref().unwrap_or(&self.context));
        reply.answer_at(
            Ok(Response { outputs, parameters, timing: state.timing, credit: None }),
            now,
        );
    }
}
