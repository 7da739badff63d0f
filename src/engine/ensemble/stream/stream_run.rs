//! A stream: one request on its way through decoupled steps, what is next in each stage, its end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use parking_lot::Mutex;

use super::stage::{BegunIteration, DecoupledCall, EndedIteration, IterationEnd, StageState};
use crate::ensemble::{
    plan::{Plan, Route, StageIndex},
    run::{StepAddrs, StepReady, WatchRequest},
};
use troupe_base::{
    error::{Error, Result},
    request::{Context, Credit, Part, Reply, Response, Wanted},
    statistics::{Statistics, Timing},
    tap::TapRecorder,
};

/// Shared by all iterations of a request.
pub(super) struct StreamRun {
    pub(super) plan: Arc<Plan>,
    pub(super) step_addrs: StepAddrs,
    /// The client's, as that of iterations; cancelled when the request fails.
    pub(super) context: Arc<Context>,
    /// One for each stage.
    pub(super) routes: Vec<Route>,
    pub(super) wanted: Wanted,
    /// Somebody captures the tensors of this request.
    pub(super) tap: Option<TapRecorder>,
    pub(super) stats: Arc<Statistics>,
    /// What statistics count.
    pub(super) rows: u32,
    /// What those results cost that the client was given and has not taken.
    pub(super) untaken: AtomicU64,
    /// The stage before the client waits for it to take some.
    pub(super) is_waiting: AtomicBool,
    pub(super) state: Mutex<StreamState>,
}

pub(super) struct StreamState {
    /// By index in the plan.
    pub(super) stages: Vec<StageState>,
    pub(super) timing: Timing,
    /// Some thread begins iterations, and will go on with those that find room meanwhile.
    pub(super) is_starting: bool,
    /// Taken by the first failure or by the end.
    pub(super) reply: Option<Reply>,
}

impl StreamRun {
    /// The decoupled step whose responses begin this stage failed, or one of them is an error.
    pub(super) fn fail(self: &Arc<Self>, stage: StageIndex, error: Error, now: Instant) {
        let mut state = self.state.lock();
        state.stages[stage].end(Err(error));
        self.advance(&mut state, now);
    }

    /// The request that a decoupled step was sent for; `None` once the client was answered.
    pub(super) fn take_call(&self, stage: StageIndex) -> Option<DecoupledCall> {
        let mut state = self.state.lock();
        let call = state.stages[stage].call.take();
        let is_over = state.reply.is_none();
        drop(state);
        call.filter(|_| !is_over)
    }

    /// The next iteration that has room, and the stage it is of. Later stages come first: what they
    /// let go of is room for earlier ones.
    pub(super) fn begin_next(
        &self,
        state: &mut StreamState,
    ) -> Option<(StageIndex, BegunIteration)> {
        (0..state.stages.len()).rev().find_map(|index| {
            let stage = &mut state.stages[index];
            let begun = match self.plan.reader(index) {
                Some(_) => stage.begin_next(0),
                None => self.begin_for_client(stage),
            };
            begun.map(|begun| (index, begun))
        })
    }

    /// What the client has not taken holds room too.
    fn begin_for_client(&self, stage: &mut StageState) -> Option<BegunIteration> {
        if !stage.is_waiting() {
            return None;
        }
        stage.begin_next(self.untaken.load(SeqCst)).or_else(|| {
            // Whoever takes a result from now on says so, and this looks again.
            self.is_waiting.store(true, SeqCst);
            stage.begin_next(self.untaken.load(SeqCst))
        })
    }

    /// Passes on whatever has its turn: calls to decoupled steps, responses to the client, the end.
    pub(super) fn advance(self: &Arc<Self>, state: &mut StreamState, now: Instant) {
        if state.reply.is_none() {
            return;
        }
        if let Some(error) = self.context.stopped() {
            return self.end(state, Err(error), now);
        }
        for index in (0..state.stages.len()).rev() {
            // Its iterations would be of no use to anybody.
            if let Some((_, feeds)) = self.plan.reader(index)
                && state.stages[feeds].has_ended()
            {
                state.stages[index].close();
            }
        }
        for index in 0..state.stages.len() {
            match self.plan.reader(index) {
                Some((step, feeds)) => self.call_step(state, index, step, feeds, now),
                None => self.respond(state, index, now),
            }
        }
    }

    /// Calls the step that reads a stage with its first iteration, one at a time.
    fn call_step(
        self: &Arc<Self>,
        state: &mut StreamState,
        stage: StageIndex,
        step: usize,
        feeds: StageIndex,
        now: Instant,
    ) {
        while !state.stages[stage].is_busy
            && let Some((result, is_last)) = state.stages[stage].take_first()
        {
            match result {
                Ok(EndedIteration { outcome: IterationEnd::Call(request), credit, .. }) => {
                    let stage = &mut state.stages[stage];
                    stage.is_busy = true;
                    stage.call = Some(DecoupledCall { request, credit, is_last });
                    self.step_addrs.of(step).do_send(StepReady { of: self.clone(), ready: now });
                }
                Ok(_) => state.stages[feeds].end(Ok(())),
                Err(error) => state.stages[feeds].end(Err(error)),
            }
        }
    }

    /// Sends the client what iterations of the stage before it have ended with.
    fn respond(self: &Arc<Self>, state: &mut StreamState, stage: StageIndex, now: Instant) {
        while let Some((result, is_last)) = state.stages[stage].take_first() {
            match result {
                Ok(ended) if !is_last => self.respond_part(state, ended),
                other => self.end(state, other.map(|ended| ended.outcome), now),
            }
        }
    }

    /// A response that others or the end will follow.
    fn respond_part(self: &Arc<Self>, state: &mut StreamState, ended: EndedIteration) {
        let EndedIteration { outcome, credit, cost } = ended;
        let (IterationEnd::Response(response), Some(reply)) = (outcome, &mut state.reply) else {
            return;
        };
        self.untaken.fetch_add(cost, SeqCst);
        let stream = self.clone();
        let credit = Credit::new(move || {
            drop(credit);
            stream.taken(cost);
        });
        reply.part(Part { result: Ok(response), credit: Some(credit) });
    }

    /// The client has taken a response. Whoever says so may hold any lock, so this takes none.
    fn taken(self: Arc<Self>, cost: u64) {
        self.untaken.fetch_sub(cost, SeqCst);
        if self.is_waiting.swap(false, SeqCst) {
            let stream = self.clone();
            self.watch(WatchRequest::Resume(stream));
        }
    }

    /// Tells an actor of this ensemble; all of them are on one thread.
    pub(super) fn watch(&self, watch: WatchRequest) {
        self.step_addrs.of(0).do_send(watch);
    }

    /// Ends the client's reply.
    pub(super) fn end(&self, state: &mut StreamState, result: Result<IterationEnd>, now: Instant) {
        let Some(reply) = state.reply.take() else { return };
        let timing = state.timing;
        state.stages.iter_mut().for_each(StageState::close);
        if result.is_ok() {
            if !self.context.is_warmup {
                self.plan.metrics.answered(now.saturating_duration_since(reply.since()));
            }
            self.stats.execution(self.rows, &timing, now);
        }
        match result {
            Ok(IterationEnd::Response(response)) => {
                reply.answer_at(Ok(Response { timing, ..response }), now);
            }
            Ok(_) => reply.end(timing),
            Err(error) => {
                self.context.cancel();
                reply.answer_at(Err(error), now);
            }
        }
    }

    /// Was the client told how it ended?
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().reply.is_none()
    }
}
