//! One request on its way through a plan: its tensors and counters, carried from step to step.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::{
    batch_dim,
    flow::Iteration,
    level::Made,
    missing,
    plan::{Plan, Route, Slot},
    sequence,
    step::Team,
    window,
};
use troupe_base::{
    error::{Error, Result},
    request::{Context, Reply, Request, Response, Wanted},
    statistics::Timing,
    tap::TapRecorder,
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
    /// Somebody captures the tensors of this request.
    tap: Option<TapRecorder>,
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
    /// For each step, how long the steps were busy without which it could not start; empty where
    /// nobody looks.
    busy: SmallVec<[Duration; 8]>,
    /// Steps that left outputs out, and which instance of them it was.
    left_out: Vec<(usize, Arc<str>)>,
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
        let tap = match &to {
            To::Client(_) => plan.taps.begin(&request, &plan.inputs),
            To::Flow(iteration) => iteration.flow.tap.clone(),
        };
        let Request { context, inputs, wanted, batch } = request;
        let route = plan.routes(&wanted)[0].clone();
        let held = |tensor| Held { tensor, batch, sequence: None };
        let tensors = plan.inputs.iter().copied().zip(inputs);
        let slots = lay(&route, &plan, tensors, held);
        let now = match &to {
            // The clock has just been asked.
            To::Client(reply) => reply.since(),
            To::Flow(_) => Instant::now(),
        };
        tell(&plan, &context, (&slots, now));
        let mut state = State::new(slots, route, wanted, to);
        if plan.metrics.is_on() && !context.is_warmup {
            state.busy = smallvec![Duration::ZERO; plan.steps.len()];
        }
        Run { plan, team, context, tap, state: Mutex::new(state) }.ready()
    }

    /// The same with one response of the decoupled step before.
    pub(super) fn iterate(iteration: Iteration, made: Made) -> (Arc<Run>, Ready) {
        let Made { response, batch, sequence, .. } = made;
        let flow = iteration.flow.clone();
        let index = flow.plan.decoupled[iteration.level - 1];
        let route = flow.routes[iteration.level].clone();
        let held = |tensor| Held { tensor, batch, sequence: sequence.clone() };
        let left_out = response.left_out_by.map(|name| (index, name));
        let mut outputs = response.outputs;
        let writes = &flow.plan.steps[index].outputs;
        let tap = flow.tap.as_ref().map(|it| it.iteration(iteration.number));
        if let Some(tap) = &tap {
            tap.outputs(writes, &outputs, batch);
        }
        let mut take = |output: usize| outputs.get_mut(output).and_then(Option::take);
        let writes = writes.iter().map(|(output, slot)| (*slot, take(*output)));
        let slots = lay(&route, &flow.plan, writes, held);
        tell(&flow.plan, &flow.context, (&slots, Instant::now()));
        let to = To::Flow(iteration);
        let mut state = State::new(slots, route, flow.wanted.clone(), to);
        state.left_out.extend(left_out);
        let state = Mutex::new(state);
        let (plan, team, context) = (flow.plan.clone(), flow.team.clone(), flow.context.clone());
        Run { plan, team, context, tap, state }.ready()
    }

    fn ready(mut self) -> (Arc<Run>, Ready) {
        let State { counters, live, left, .. } = self.state.get_mut();
        let steps = 0..self.plan.steps.len();
        let ready = steps.filter(|it| live[*it] && counters[*it] == 0).collect();
        if *left == 0 {
            self.finish(&mut self.state.lock(), Duration::ZERO, Instant::now());
        }
        (Arc::new(self), ready)
    }

    /// Whether the tensors it still makes would be of use to nobody.
    pub(super) fn is_needless(&self) -> bool {
        self.context.is_stopped() || !self.state.lock().is_wanted()
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
        let mut missing = None;
        for (position, slot) in step.inputs.iter().enumerate() {
            let held = slot.and_then(|slot| self.read(&mut state, slot));
            let config = &step.model.config;
            if held.is_none() && !config.inputs[position].optional {
                missing = missing.or(*slot);
            }
            inputs.push(held.map(|Held { tensor, batch, sequence: said }| {
                // When several producers say something, the first counts.
                sequence = sequence.take().or(said);
                let dims = &config.inputs[position].dims;
                batch_dim::adapt_batch_dim(tensor, batch, 0 < config.max_batch_size, dims)
            }));
        }
        let wanted = step.wanted.clone();
        let context = sequence.unwrap_or_else(|| self.context.clone());
        let mut request = Request { context, inputs, wanted, batch: 0 };
        if let Some((maker, source)) =
            missing.and_then(|it| missing::input(&self.plan, (index, it), &mut request))
        {
            self.fail(&mut state, maker, (source, Instant::now()));
            return None;
        }
        Some(request)
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

    /// Takes in what a step answered to a batch, after it was busy so long. Says which steps can start
    /// now.
    pub(super) fn step_done(
        &self,
        index: usize,
        (batch, busy): (u32, Duration),
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
        let (mut response, sequence) = match result {
            Ok(it) => it,
            Err(source) => {
                self.fail(&mut state, index, (source, now));
                return Ready::new();
            }
        };
        state.timing += response.timing;
        let step = &self.plan.steps[index];
        let outputs = &mut response.outputs;
        if let Some(tap) = &self.tap {
            tap.outputs(&step.outputs, outputs, batch);
        }
        for (output, slot) in &step.outputs {
            // What the step did not give stays empty, and so is left out downstream.
            let tensor = outputs.get_mut(*output).and_then(Option::take);
            if tensor.is_none() {
                let name = response.left_out_by.take();
                state.left_out.extend(name.map(|name| (index, name)));
            }
            if state.counters[self.plan.steps.len() + slot] != 0 {
                let sequence = sequence.clone();
                if let Some(tensor) = tensor.as_ref().filter(|_| !self.context.is_warmup) {
                    self.plan.live.record_tensor(*slot, tensor.data().len(), now);
                }
                state.slots[*slot] = tensor.map(|tensor| Held { tensor, batch, sequence });
            }
        }
        state.note_peak();
        state.left -= 1;
        let busy = busy + state.busy.get(index).copied().unwrap_or_default();
        if state.left == 0 {
            self.finish(&mut state, busy, now);
            return Ready::new();
        }
        let mut ready = Ready::new();
        for &next in &step.unblocks {
            state.counters[next] -= 1;
            if state.counters[next] == 0 && state.live[next] {
                if let Some(before) = state.busy.get_mut(next) {
                    *before = busy;
                }
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
        let source = match state.left_out.iter().find(|it| it.0 == index) {
            Some((_, name)) => source.at_instance(name),
            None => source,
        };
        if let Some(tap) = &self.tap {
            tap.failed(index, &source);
        }
        let error = self.plan.at_step(index, source, &self.context);
        match to {
            To::Client(reply) => reply.answer_at(Err(error), now),
            To::Flow(iteration) => iteration.fail(error, now),
        }
    }

    /// The last step has ended; `busy` is how long the steps were that it and all waited for.
    fn finish(&self, state: &mut State, busy: Duration, now: Instant) {
        if let Some(To::Client(_)) = &state.to
            && let Some((maker, source)) =
                missing::outputs(&self.plan, &state.wanted, |slot| state.slots[slot].is_some())
        {
            return self.fail(state, maker, (source, now));
        }
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
            Some(batch_dim::adapt_batch_dim(
                held.tensor,
                held.batch,
                0 < config.max_batch_size,
                dims,
            ))
        });
        let outputs = outputs.collect();
        let parameters = sequence::parameters(sequence.as_deref().unwrap_or(&self.context));
        let timing = state.timing;
        let response = Response { outputs, parameters, timing, ..Response::default() };
        match to {
            To::Client(reply) => {
                if !self.context.is_warmup {
                    let whole = now.saturating_duration_since(reply.since());
                    self.plan.metrics.answered_with(whole, busy);
                }
                reply.answer_at(Ok(response), now);
            }
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
            busy: SmallVec::new(),
            left_out: Vec::new(),
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
    plan: &Plan,
    tensors: impl Iterator<Item = (Slot, Option<Tensor>)>,
    held: impl Fn(Tensor) -> Held,
) -> Vec<Option<Held>> {
    let mut laid: Vec<Option<Held>> = Vec::new();
    laid.resize_with(plan.slots, || None);
    let steps = plan.steps.len();
    for (slot, tensor) in tensors {
        if route.counters[steps + slot] != 0 {
            laid[slot] = tensor.map(&held);
        }
    }
    laid
}

/// What a run begins with shows in the live picture.
fn tell(plan: &Plan, context: &Context, (laid, now): (&[Option<Held>], Instant)) {
    if context.is_warmup {
        return;
    }
    for (slot, held) in laid.iter().enumerate() {
        if let Some(held) = held {
            plan.live.record_tensor(slot, held.tensor.data().len(), now);
        }
    }
}
