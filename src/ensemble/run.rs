//! One request on its way through a plan: its tensors and counters, carried from step to step.

use std::{mem, sync::Arc, time::Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    batch,
    flow::Iteration,
    level::Made,
    plan::{Plan, Route, Slot},
    sequence,
    step::Team,
    window,
};
use crate::{
    error::{Error, Result},
    request::{Context, Reply, Request, Response, Wanted},
    statistics::Timing,
    tensor::Tensor,
};

/// Positions of steps that can start.
pub(super) type Ready = SmallVec<[usize; 8]>;

/// Whom the outputs are for.
pub(super) enum To {
    Client(Reply),
    /// For the next decoupled step, or for the client in their turn.
    Flow(Iteration),
}

/// Shared by all messages about one request, or about one of its iterations.
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
    wanted: Wanted,
    timing: Timing,
    /// Taken by the first failure or by the last step.
    to: Option<To>,
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
        to: To,
    ) -> (Arc<Run>, Ready) {
        let Request { context, inputs, wanted, batch } = request;
        let route = plan.routes(&wanted)[0].clone();
        let held = |tensor| Held { tensor, batch, sequence: None };
        let slots = lay(&route, plan.slots, plan.inputs.iter().copied().zip(inputs), held);
        let state = Mutex::new(State::new(slots, route, wanted, to));
        Run { plan, team, context, state }.ready()
    }

    /// The same with one response of the decoupled step before.
    pub(super) fn iterate(iteration: Iteration, made: Made) -> (Arc<Run>, Ready) {
        let Made { response, batch, sequence, .. } = made;
        let flow = iteration.flow.clone();
        let index = flow.plan.decoupled[iteration.level - 1];
        let route = flow.routes[iteration.level].clone();
        let held = |tensor| Held { tensor, batch, sequence: sequence.clone() };
        let mut outputs = response.outputs;
        let mut take = |output: usize| outputs.get_mut(output).and_then(Option::take);
        let writes = &flow.plan.steps[index].outputs;
        let writes = writes.iter().map(|(output, slot)| (*slot, take(*output)));
        let slots = lay(&route, flow.plan.slots, writes, held);
        let to = To::Flow(iteration);
        let state = Mutex::new(State::new(slots, route, flow.wanted.clone(), to));
        let (plan, team, context) = (flow.plan.clone(), flow.team.clone(), flow.context.clone());
        Run { plan, team, context, state }.ready()
    }

    fn ready(mut self) -> (Arc<Run>, Ready) {
        let State { counters, live, left, .. } = self.state.get_mut();
        let steps = 0..self.plan.steps.len();
        let ready = steps.filter(|it| live[*it] && counters[*it] == 0).collect();
        if *left == 0 {
            self.finish(&mut self.state.lock(), Instant::now());
        }
        (Arc::new(self), ready)
    }

    /// Whether the tensors it still makes would be of use to nobody.
    pub(super) fn is_needless(&self) -> bool {
        self.context.is_cancelled() || !self.state.lock().is_wanted()
    }

    /// Ends as the request of a decoupled step, the only one left of this iteration.
    pub(super) fn ask(&self, index: usize) {
        let Some(request) = self.request(index) else { return };
        let mut state = self.state.lock();
        if let Some(To::Flow(iteration)) = state.to.take() {
            iteration.ask(request, state.timing);
        }
    }

    /// The request of a step whose producers have all finished; `None` once the run has failed.
    pub(super) fn request(&self, index: usize) -> Option<Request> {
        let step = &self.plan.steps[index];
        let mut state = self.state.lock();
        if !state.is_wanted() {
            return None;
        }
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
        if state.to.is_none() {
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
        state.note_peak();
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

    /// The first failure answers at once, or in its turn; siblings that have not started are
    /// skipped.
    fn fail(&self, state: &mut State, index: usize, (source, now): (Error, Instant)) {
        let Some(to) = state.to.take() else { return };
        if !self.context.is_iteration {
            self.context.cancel();
        }
        state.slots.clear();
        let error = self.plan.at_step(index, source);
        match to {
            To::Client(reply) => reply.answer_at(Err(error), now),
            To::Flow(iteration) => iteration.fail(error, now),
        }
    }

    fn finish(&self, state: &mut State, now: Instant) {
        let Some(to) = state.to.take() else { return };
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
        let response = Response { outputs, parameters, timing: state.timing };
        match to {
            To::Client(reply) => reply.answer_at(Ok(response), now),
            To::Flow(iteration) => iteration.answer(response, now),
        }
    }
}

impl State {
    fn new(slots: Vec<Option<Held>>, route: Route, wanted: Wanted, to: To) -> State {
        State {
            slots,
            counters: route.counters,
            live: route.live,
            left: route.steps,
            wanted,
            timing: Timing::default(),
            to: Some(to),
        }
    }

    /// An iteration costs as much as the tensors it holds at once.
    fn note_peak(&mut self) {
        if let Some(To::Flow(iteration)) = &mut self.to {
            let tensors = self.slots.iter().flatten().map(|it| &it.tensor);
            iteration.peak = iteration.peak.max(window::cost(tensors));
        }
    }

    /// It has not failed, nor has an iteration before it.
    fn is_wanted(&self) -> bool {
        match &self.to {
            None => false,
            Some(To::Client(_)) => true,
            Some(To::Flow(iteration)) => iteration.is_wanted(),
        }
    }
}

/// Tensors in their slots; one that nobody reads is not kept.
fn lay(
    route: &Route,
    slots: usize,
    tensors: impl Iterator<Item = (Slot, Option<Tensor>)>,
    held: impl Fn(Tensor) -> Held,
) -> Vec<Option<Held>> {
    let mut laid: Vec<Option<Held>> = Vec::new();
    laid.resize_with(slots, || None);
    let steps = route.counters.len() - slots;
    for (slot, tensor) in tensors {
        if route.counters[steps + slot] != 0 {
            laid[slot] = tensor.map(&held);
        }
    }
    laid
}
