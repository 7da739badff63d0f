//! One request on its way through decoupled steps: its iterations, their order and its end.
//!
//! Every response of a decoupled step begins an iteration: a `Run` of the steps up to the next
//! decoupled one, which reads the iterations one after the other, or up to the client.

use std::{mem, sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::{
    Ensemble,
    order::Order,
    plan::{Plan, Route},
    run::{Run, To},
    step::{self, Team, Work},
    turn::Turn,
};
use crate::{
    error::{Error, Result},
    request::{Context, Credit, Reply, Request, Response, Wanted},
    statistics::{Statistics, Timing},
    tap::Recording,
};

/// Shared by all iterations of a request.
pub(super) struct Flow {
    pub(super) plan: Arc<Plan>,
    pub(super) team: Team,
    /// The client's, marked as that of iterations.
    pub(super) context: Arc<Context>,
    /// One for each level.
    pub(super) routes: Vec<Route>,
    pub(super) wanted: Wanted,
    /// Somebody captures the tensors of this request.
    pub(super) tap: Option<Recording>,
    /// This ensemble runs within an iteration of another one, which goes on when this fails.
    is_iteration: bool,
    stats: Arc<Statistics>,
    /// What statistics count.
    rows: u32,
    state: Mutex<State>,
}

struct State {
    levels: Vec<Level>,
    timing: Timing,
    /// Taken by the first failure or by the end.
    reply: Option<Reply>,
}

/// Iterations between two decoupled steps.
#[derive(Default)]
struct Level {
    order: Order<Done>,
    /// The decoupled step that reads this level is at work.
    is_busy: bool,
}

/// How an iteration ended.
enum Done {
    /// With a request to the next decoupled step.
    Asks(Request, Option<Arc<Credit>>),
    /// With a response to the client.
    Answers(Response),
    /// Without either; said of the last one only.
    Nothing,
}

/// The one way to end an iteration.
pub(super) struct Iteration {
    pub(super) flow: Arc<Flow>,
    pub(super) level: usize,
    /// Counted from 0 within the level.
    pub(super) number: u64,
    /// That of the responses it comes from; whoever made them makes no more than it has credit for.
    credit: Option<Arc<Credit>>,
}

impl Flow {
    /// Starts what can start.
    pub(super) fn start(ensemble: &Ensemble, request: Request, reply: Reply) {
        let Ensemble { plan, stats, team } = ensemble;
        let routes = plan.routes(&request.wanted).into_owned();
        let levels = routes.iter().map(|_| Level::default()).collect();
        let state = State { levels, timing: Timing::default(), reply: Some(reply) };
        let context = Arc::new(request.context.in_iterations());
        let flow = Arc::new(Flow {
            plan: plan.clone(),
            team: team.clone(),
            context: context.clone(),
            routes,
            wanted: request.wanted.clone(),
            tap: plan.taps.begin(&request, &plan.inputs),
            is_iteration: request.context.is_iteration,
            stats: stats.clone(),
            rows: request.counted_rows(),
            state: Mutex::new(state),
        });
        // What the client sent is the one iteration of the first level.
        let Some(iteration) = flow.begin(0, true, None) else { return };
        let request = Request { context, ..request };
        let (plan, team) = (plan.clone(), team.clone());
        let (run, ready) = Run::begin(plan, team, request, To::Flow(iteration));
        step::start(&run, ready, Instant::now());
    }

    /// One more iteration of a level; `None` where nothing more is wanted.
    pub(super) fn begin(
        self: &Arc<Self>,
        level: usize,
        is_last: bool,
        credit: Option<Arc<Credit>>,
    ) -> Option<Iteration> {
        let mut state = self.state.lock();
        state.reply.as_ref()?;
        let number = state.levels[level].order.begin(is_last)?;
        Some(Iteration { flow: self.clone(), level, number, credit })
    }

    /// The decoupled step that begins `level` failed, or one of its responses is an error.
    pub(super) fn fail(self: &Arc<Self>, level: usize, error: Error, now: Instant) {
        let mut state = self.state.lock();
        let order = &mut state.levels[level].order;
        let Some(number) = order.begin(true) else { return };
        order.settle(number, Err(error));
        self.advance(&mut state, now);
    }

    /// The decoupled step that reads `level` has told all its responses to one iteration; nothing
    /// follows if that was the last.
    pub(super) fn step_ended(
        self: &Arc<Self>,
        level: usize,
        is_last: bool,
        (timing, now): (Timing, Instant),
    ) {
        let mut state = self.state.lock();
        state.timing += timing;
        state.levels[level].is_busy = false;
        let next = &mut state.levels[level + 1].order;
        if is_last && let Some(number) = next.begin(true) {
            next.settle(number, Ok(Done::Nothing));
        }
        self.advance(&mut state, now);
    }

    /// Passes on whatever has its turn.
    fn advance(self: &Arc<Self>, state: &mut State, now: Instant) {
        if state.reply.is_none() {
            return;
        }
        let clients = state.levels.len() - 1;
        for level in (0..clients).rev() {
            // Its iterations would be of no use to anybody.
            if state.levels[level + 1].order.is_closed() {
                state.levels[level].order.close();
            }
        }
        for level in 0..clients {
            let [this, next] = &mut state.levels[level..level + 2] else { return };
            while !this.is_busy
                && let Some((outcome, is_last)) = this.order.next()
            {
                let end = match outcome {
                    Ok(Done::Asks(request, credit)) => {
                        this.is_busy = true;
                        let index = self.plan.decoupled[level];
                        let (flow, ready) = (self.clone(), now);
                        let turn = Turn { flow, level, request, credit, is_last, ready };
                        self.team[index].do_send(Work::Turn(Box::new(turn)));
                        continue;
                    }
                    Ok(_) => Ok(Done::Nothing),
                    Err(error) => Err(error),
                };
                if let Some(number) = next.order.begin(true) {
                    next.order.settle(number, end);
                }
            }
        }
        while let Some((outcome, is_last)) = state.levels[clients].order.next() {
            self.answer(state, (outcome, is_last), now);
        }
    }

    /// Tells the client how the next iteration ended.
    fn answer(&self, state: &mut State, (outcome, is_last): (Result<Done>, bool), now: Instant) {
        let outcome = match outcome {
            Ok(Done::Answers(response)) if !is_last => {
                if let Some(reply) = &mut state.reply {
                    reply.part(Ok(response));
                }
                return;
            }
            other => other,
        };
        let Some(reply) = state.reply.take() else { return };
        let timing = state.timing;
        state.levels.iter_mut().for_each(|it| it.order.close());
        if outcome.is_ok() {
            if !self.context.is_warmup {
                self.plan.metrics.answered(now.saturating_duration_since(reply.since()));
            }
            self.stats.execution(self.rows, &timing, now);
        }
        match outcome {
            Ok(Done::Answers(response)) => {
                reply.answer_at(Ok(Response { timing, ..response }), now);
            }
            Ok(_) => reply.end(timing),
            Err(error) => {
                if !self.is_iteration {
                    self.context.cancel();
                }
                reply.answer_at(Err(error), now);
            }
        }
    }
}

impl Iteration {
    /// Does anybody wait for it?
    pub(super) fn is_wanted(&self) -> bool {
        let state = self.flow.state.lock();
        state.levels[self.level].order.is_wanted(self.number)
    }

    /// It ends with a response to the client, who gives its credit back.
    pub(super) fn answer(mut self, mut response: Response, now: Instant) {
        response.credit = self.credit.take();
        let timing = mem::take(&mut response.timing);
        self.settle(Ok(Done::Answers(response)), (timing, now));
    }

    /// It ends with a request to the next decoupled step; its other steps took so long.
    pub(super) fn ask(mut self, request: Request, timing: Timing) {
        let credit = self.credit.take();
        self.settle(Ok(Done::Asks(request, credit)), (timing, Instant::now()));
    }

    /// It failed, and with it the request, once those before it have ended.
    pub(super) fn fail(self, error: Error, now: Instant) {
        self.settle(Err(error), (Timing::default(), now));
    }

    fn settle(self, outcome: Result<Done>, (timing, now): (Timing, Instant)) {
        let Iteration { flow, level, number, .. } = self;
        let mut state = flow.state.lock();
        state.timing += timing;
        state.levels[level].order.settle(number, outcome);
        flow.advance(&mut state, now);
    }
}
