//! One request on its way through decoupled steps: its iterations, their order and its end.
//!
//! Every response of a decoupled step begins an iteration: a `Run` of the steps up to the next
//! decoupled one, which reads the iterations one after the other, or up to the client.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};

use super::{
    Ensemble,
    level::{Done, Ended, Level, Made},
    plan::{Plan, Route},
    run::{Run, To},
    step::{self, Team, Work},
    turn::Turn,
    watch::Flows,
    window,
};
use troupe_base::{
    error::{Error, Result},
    request::{Context, Credit, Part, Reply, Request, Response, Wanted},
    statistics::{Statistics, Timing},
    tap::TapRecorder,
};

/// Shared by all iterations of a request.
pub(super) struct Flow {
    pub(super) plan: Arc<Plan>,
    pub(super) team: Team,
    /// The client's, as that of iterations; cancelled when the request fails.
    pub(super) context: Arc<Context>,
    /// One for each level.
    pub(super) routes: Vec<Route>,
    pub(super) wanted: Wanted,
    /// Somebody captures the tensors of this request.
    pub(super) tap: Option<TapRecorder>,
    stats: Arc<Statistics>,
    /// What statistics count.
    rows: u32,
    /// What those results cost that the client was given and has not taken.
    out: AtomicU64,
    /// The last level waits for the client to take some.
    is_waiting: AtomicBool,
    state: Mutex<State>,
}

struct State {
    levels: Vec<Level>,
    timing: Timing,
    /// Some thread begins iterations, and will go on with those that find room meanwhile.
    is_starting: bool,
    /// Taken by the first failure or by the end.
    reply: Option<Reply>,
}

/// The one way to end an iteration.
pub(super) struct Iteration {
    pub(super) flow: Arc<Flow>,
    pub(super) level: usize,
    /// Counted from 0 within the level.
    pub(super) number: u64,
    /// That of the responses it comes from; whoever made them makes no more than it has credit for.
    credit: Option<Arc<Credit>>,
    /// The most it has cost at once.
    pub(super) peak: u64,
}

impl Flow {
    /// Starts what can start.
    pub(super) fn start(ensemble: &Ensemble, request: Request, reply: Reply) {
        let Ensemble { plan, stats, team, window } = ensemble;
        let routes = plan.routes(&request.wanted).into_owned();
        let mut levels: Vec<_> = routes.iter().map(|_| Level::new(*window)).collect();
        // What the client sent is the one iteration of the first level.
        let Some(number) = levels[0].begin() else { return };
        let (timing, reply) = (Timing::default(), Some(reply));
        let state = State { levels, timing, is_starting: false, reply };
        let context = Arc::new(request.context.in_iterations());
        let flow = Arc::new(Flow {
            plan: plan.clone(),
            team: team.clone(),
            context: context.clone(),
            routes,
            wanted: request.wanted.clone(),
            tap: plan.taps.begin(&request, &plan.inputs),
            stats: stats.clone(),
            rows: request.counted_rows(),
            out: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        flow.tell(Flows::Watch(Arc::downgrade(&flow)));
        let iteration = Iteration { flow, level: 0, number, credit: None, peak: 0 };
        let request = Request { context, ..request };
        let (plan, team) = (plan.clone(), team.clone());
        let (run, ready) = Run::begin(plan, team, request, To::Flow(iteration));
        step::start(&run, ready, Instant::now());
    }

    /// To an actor of this ensemble.
    fn tell(&self, flows: Flows) {
        self.team[self.plan.decoupled[0]].do_send(flows);
    }

    /// A response of the decoupled step before `level`: one more iteration, at once or in its turn.
    pub(super) fn add(self: &Arc<Self>, level: usize, made: Made) {
        let mut state = self.state.lock();
        if state.reply.is_some() {
            state.levels[level].add(made);
            self.start_more(state);
        }
    }

    /// The decoupled step before `level` failed, or one of its responses is an error.
    pub(super) fn fail(self: &Arc<Self>, level: usize, error: Error, now: Instant) {
        let mut state = self.state.lock();
        state.levels[level].end(Err(error));
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
        if is_last {
            state.levels[level + 1].end(Ok(()));
        }
        self.advance(&mut state, now);
        self.start_more(state);
    }

    /// There may be room for more iterations.
    pub(super) fn go_on(self: &Arc<Self>) {
        self.start_more(self.state.lock());
    }

    /// Begins iterations as far as there is room, unless another thread is at it and will see to it.
    fn start_more(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        while !state.is_starting
            && state.reply.is_some()
            && let Some((level, made, number)) = self.next(&mut state)
        {
            state.is_starting = true;
            MutexGuard::unlocked(&mut state, || {
                let Made { credit, .. } = made;
                let iteration = Iteration { flow: self.clone(), level, number, credit, peak: 0 };
                let (run, ready) = Run::iterate(iteration, Made { credit: None, ..made });
                step::start(&run, ready, Instant::now());
            });
            state.is_starting = false;
        }
    }

    /// The next iteration that has room.
    fn next(&self, state: &mut State) -> Option<(usize, Made, u64)> {
        let clients = state.levels.len() - 1;
        let last = &mut state.levels[clients];
        if last.is_waiting() {
            let found = last.start(self.out.load(SeqCst)).or_else(|| {
                // Whoever takes a result from now on says so, and this looks again.
                self.is_waiting.store(true, SeqCst);
                last.start(self.out.load(SeqCst))
            });
            if let Some((made, number)) = found {
                return Some((clients, made, number));
            }
        }
        let others = state.levels[..clients].iter_mut().enumerate();
        others.rev().find_map(|(level, it)| it.start(0).map(|(made, number)| (level, made, number)))
    }

    /// Passes on whatever has its turn.
    fn advance(self: &Arc<Self>, state: &mut State, now: Instant) {
        if state.reply.is_none() {
            return;
        }
        if let Some(error) = self.context.stopped() {
            return self.end(state, Err(error), now);
        }
        let clients = state.levels.len() - 1;
        for level in (0..clients).rev() {
            // Its iterations would be of no use to anybody.
            if state.levels[level + 1].has_ended() {
                state.levels[level].close();
            }
        }
        for level in 0..clients {
            let [this, next] = &mut state.levels[level..level + 2] else { return };
            while !this.is_busy
                && let Some((outcome, is_last)) = this.next()
            {
                match outcome {
                    Ok(Ended { done: Done::Asks(request), credit, .. }) => {
                        this.is_busy = true;
                        let index = self.plan.decoupled[level];
                        let (flow, ready) = (self.clone(), now);
                        let turn = Turn { flow, level, request, credit, is_last, ready };
                        self.team[index].do_send(Work::Turn(Box::new(turn)));
                    }
                    Ok(_) => next.end(Ok(())),
                    Err(error) => next.end(Err(error)),
                }
            }
        }
        while let Some((outcome, is_last)) = state.levels[clients].next() {
            match outcome {
                Ok(ended) if !is_last => self.give(state, ended),
                other => self.end(state, other.map(|it| it.done), now),
            }
        }
    }

    /// Gives the client a response that others or the end will follow.
    fn give(self: &Arc<Self>, state: &mut State, Ended { done, credit, cost }: Ended) {
        let (Done::Answers(response), Some(reply)) = (done, &mut state.reply) else { return };
        self.out.fetch_add(cost, SeqCst);
        let flow = self.clone();
        let credit = Credit::new(move || {
            drop(credit);
            flow.taken(cost);
        });
        reply.part(Part { result: Ok(response), credit: Some(credit) });
    }

    /// The client has taken a response. Whoever says so may hold any lock, so this takes none.
    fn taken(self: Arc<Self>, cost: u64) {
        self.out.fetch_sub(cost, SeqCst);
        if self.is_waiting.swap(false, SeqCst) {
            let flow = self.clone();
            self.tell(Flows::GoOn(flow));
        }
    }

    /// Tells the client how it ended.
    fn end(&self, state: &mut State, outcome: Result<Done>, now: Instant) {
        let Some(reply) = state.reply.take() else { return };
        let timing = state.timing;
        state.levels.iter_mut().for_each(Level::close);
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
                self.context.cancel();
                reply.answer_at(Err(error), now);
            }
        }
    }

    /// Ends the request if its client has gone, whatever is still at work; says whether that is so.
    pub(super) fn is_given_up(&self) -> bool {
        let stopped = self.context.stopped();
        let is_given_up = stopped.is_some();
        if let Some(error) = stopped {
            self.end(&mut self.state.lock(), Err(error), Instant::now());
        }
        is_given_up
    }

    /// Was the client told how it ended?
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().reply.is_none()
    }
}

impl Iteration {
    /// Does anybody wait for it?
    pub(super) fn is_wanted(&self) -> bool {
        self.flow.state.lock().levels[self.level].is_wanted(self.number)
    }

    /// It ends with a response to the client, who gives its credit back.
    pub(super) fn answer(self, mut response: Response, now: Instant) {
        let timing = mem::take(&mut response.timing);
        let cost = window::cost(response.outputs.iter().flatten());
        self.settle(Ok((Done::Answers(response), cost)), (timing, now));
    }

    /// It ends with a request to the next decoupled step; its other steps took so long.
    pub(super) fn ask(self, request: Request, timing: Timing) {
        let cost = window::cost(request.inputs.iter().flatten());
        self.settle(Ok((Done::Asks(request), cost)), (timing, Instant::now()));
    }

    /// It failed, and with it the request, once those before it have ended.
    pub(super) fn fail(self, error: Error, now: Instant) {
        self.settle(Err(error), (Timing::default(), now));
    }

    fn settle(self, outcome: Result<(Done, u64)>, (timing, now): (Timing, Instant)) {
        let Iteration { flow, level, number, credit, peak } = self;
        let outcome = outcome.map(|(done, cost)| Ended { done, credit, cost });
        let mut state = flow.state.lock();
        state.timing += timing;
        state.levels[level].settle(number, outcome, peak);
        flow.advance(&mut state, now);
        drop(state);
        flow.go_on();
    }
}
