//! The reply of a request: counts, charges and traces what a model answers, and passes it on once.

use std::{
    any::Any,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    response::{Answer, Drain, Part, Response},
    states::StateKeeper,
};
use crate::{
    budget::{Charge, Reserved},
    error::{Error, Result},
    statistics::{RequestGuard, Statistics, ThreadArc, Timing},
    tensor::charge_answer,
    trace::OpenSpan,
};

/// The one way to answer a request. Dropping it unanswered answers with an error.
pub struct Reply {
    to: Option<Box<dyn Answer>>,
    /// Where this answer counts.
    guard: Option<RequestGuard>,
    since: Instant,
    /// Who is charged for what is answered.
    charge: Charge,
    /// What the request's inputs take of the model's share.
    _inputs: Option<Reserved>,
    extras: Option<Box<Extras>>,
}

/// What few replies have: not in `Reply`, which each step of an ensemble moves about.
#[derive(Default)]
struct Extras {
    /// Where it is traced, if somebody watches the request.
    open_span: Option<OpenSpan>,
    /// The instance that answers, if it does so on its own.
    instance: Option<Arc<str>>,
    /// What takes the states of a sequence out of what is answered.
    states: Option<StateKeeper>,
    /// Where the request was executed, and is to be executed once more.
    iterations: Option<Iterations>,
    /// What stays at least until it is answered.
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

/// The executions of a request before the one that answers it.
struct Iterations {
    /// What they took together, and what the request waited for them.
    timing: Timing,
    /// When the last one ended.
    since: Instant,
}

impl Reply {
    /// Answers go to `to`.
    pub fn new(to: impl Answer + 'static) -> Reply {
        Reply::new_at(to, Instant::now())
    }

    /// The same, its time counted from `since` on.
    pub fn new_at(to: impl Answer + 'static, since: Instant) -> Reply {
        let to: Box<dyn Answer> = Box::new(to);
        let charge = Charge::default();
        Reply { to: Some(to), guard: None, since, charge, _inputs: None, extras: None }
    }

    /// A reply and the place to wait for it.
    pub fn channel() -> (Reply, oneshot::Receiver<Result<Response>>) {
        let (sender, receiver) = oneshot::channel();
        (Reply::new(sender), receiver)
    }

    /// A reply that takes any number of responses and keeps none, and the place to wait for its
    /// end: the first failure, if there was one.
    pub fn drained() -> (Reply, oneshot::Receiver<Result<()>>) {
        let (sender, receiver) = oneshot::channel();
        (Reply::new(Drain { ended: sender, failed: None }), receiver)
    }

    /// Counts the answer in a model's statistics.
    #[inline]
    pub fn counted(mut self, stats: impl Into<ThreadArc<Statistics>>) -> Reply {
        self.guard = Some(RequestGuard::new(stats, self.since));
        self
    }

    /// Counts the answer nowhere: the request never was one of the model.
    pub fn uncounted(mut self) -> Reply {
        self.uncount();
        self
    }

    pub(crate) fn uncount(&mut self) {
        self.guard = None;
        if let Some(to) = &mut self.to {
            to.uncount();
        }
    }

    /// Charges the request for the tensors it is answered with. `inputs` are free again when it is
    /// answered.
    #[inline]
    pub fn charged(mut self, charge: Charge, inputs: Option<Reserved>) -> Reply {
        self.charge = charge;
        self._inputs = inputs;
        self
    }

    /// Keeps this until it is answered.
    pub fn holding(mut self, held: Arc<dyn Any + Send + Sync>) -> Reply {
        self.extras()._held = Some(held);
        self
    }

    /// What follows is said by this instance.
    pub fn by_instance(mut self, name: &Arc<str>) -> Reply {
        self.extras().instance = Some(name.clone());
        self
    }

    /// Keeps the states of the request's sequence, before anybody sees what is answered.
    pub fn keeping(mut self, states: StateKeeper) -> Reply {
        self.extras().states = Some(states);
        self
    }

    /// What keeps the states of the request's sequence, if it has some.
    pub fn state_keeper(&self) -> Option<&StateKeeper> {
        self.extras.as_ref()?.states.as_ref()
    }

    /// Notes the answer in the record of the request.
    pub fn traced(mut self, open_span: OpenSpan) -> Reply {
        self.extras().open_span = Some(open_span);
        self
    }

    /// Sets the time when work on the request began: its first response took the time from there.
    #[inline]
    pub fn begun(&mut self, now: Instant) {
        if let Some(guard) = &mut self.guard {
            guard.begun(now);
        }
    }

    /// When the request reached the model.
    #[inline]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Since when the request waits to be executed: since it reached the model, or since its last
    /// execution.
    #[inline]
    pub fn waits_since(&self) -> Instant {
        let iterations = self.extras.as_ref().and_then(|it| it.iterations.as_ref());
        iterations.map_or(self.since, |it| it.since)
    }

    /// An execution that took this long has ended, and the request waits for another one.
    pub fn iterated(&mut self, timing: Timing, now: Instant) {
        let timing = self.whole(timing);
        self.extras().iterations = Some(Iterations { timing, since: now });
    }

    /// What the request took in all, if its last execution took this long.
    #[inline]
    pub fn whole(&self, mut last: Timing) -> Timing {
        if let Some(earlier) = self.extras.as_ref().and_then(|it| it.iterations.as_ref()) {
            last += earlier.timing;
        }
        last
    }

    /// May it be given any number of responses?
    #[inline]
    pub fn takes_many(&self) -> bool {
        self.to.as_ref().is_some_and(|it| it.takes_many())
    }

    /// Sends a response on that others or the end will follow.
    pub fn part(&mut self, part: impl Into<Part>) {
        let Part { mut result, credit } = part.into();
        self.take_states_and_name(&mut result);
        self.count_bytes(&mut result);
        let now = Instant::now();
        if let Some(guard) = &mut self.guard {
            let elapsed = now.saturating_duration_since(self.since);
            guard.progressed();
            guard.responded(elapsed, now, output_time(&result));
        }
        if let Some(open_span) = self.open_span() {
            if let Ok(response) = &result {
                open_span.outputs(&response.outputs);
            }
            open_span.part(result.as_ref().err(), now);
        }
        if let Some(to) = &mut self.to {
            to.part(Part { result, credit }, now);
        }
    }

    /// Says that there will be no more, the request's time spent as `timing` says.
    pub fn end(mut self, timing: Timing) {
        let Some(to) = self.to.take() else { return };
        let now = Instant::now();
        if let Some(guard) = &self.guard {
            guard.ended(now);
        }
        self.count(&Ok(&timing), now);
        to.end(timing, now);
    }

    /// Says that the request is wrong, before any work on it has begun.
    pub fn refuse(mut self, error: Error) {
        let Some(to) = self.to.take() else { return };
        let now = Instant::now();
        self.count(&Err(&error), now);
        to.refuse(error, now);
    }

    /// Sends the answer on.
    pub fn answer(self, result: Result<Response>) {
        self.answer_at(result, Instant::now());
    }

    /// The same for whoever has just looked at the clock.
    #[inline]
    pub fn answer_at(mut self, result: Result<Response>, now: Instant) {
        self.send(result, now);
    }

    fn send(&mut self, mut result: Result<Response>, now: Instant) {
        let Some(to) = self.to.take() else { return };
        self.take_states_and_name(&mut result);
        self.count_bytes(&mut result);
        if let (Some(open_span), Ok(response)) = (self.open_span(), &result) {
            open_span.outputs(&response.outputs);
        }
        if let Some(guard) = &mut self.guard {
            let elapsed = now.saturating_duration_since(self.since);
            guard.responded(elapsed, now, output_time(&result));
            if let Ok(response) = &mut result {
                count_flaws(guard.stats(), response);
            }
        }
        self.count(&result.as_ref().map(|it| &it.timing), now);
        to.answer(result, now);
    }

    /// Answers that are too much for the budget fail: their bytes exist already, but not for long.
    fn count_bytes(&self, result: &mut Result<Response>) {
        if self.charge.counts_anything()
            && let Ok(response) = result
            && let Err(error) = charge_answer(&mut response.outputs, &self.charge)
        {
            *result = Err(error);
        }
    }

    /// Keeps the states of the request's sequence, and says which instance answers.
    fn take_states_and_name(&self, result: &mut Result<Response>) {
        let Some(extras) = &self.extras else { return };
        if let Some(keeper) = &extras.states
            && let Ok(response) = result
            && let Err(error) = keeper.keep(&mut response.outputs)
        {
            *result = Err(error);
        }
        if let Some(name) = &extras.instance {
            Response::name_instance(result, name);
        }
    }

    fn open_span(&self) -> Option<&OpenSpan> {
        self.extras.as_ref()?.open_span.as_ref()
    }

    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    fn count(&mut self, result: &Result<&Timing, &Error>, now: Instant) {
        if let Some(open_span) = self.extras.as_mut().and_then(|it| it.open_span.take()) {
            open_span.end(result, now);
        }
        let Some(guard) = self.guard.take() else { return };
        let (stats, elapsed) = (guard.stats(), now.saturating_duration_since(self.since));
        stats.recent.ended(result.as_ref().err().copied(), elapsed, now);
        match result {
            Ok(timing) => stats.success(timing, elapsed),
            Err(error) => stats.failure(error.kind(), elapsed),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.to.is_some() {
            let stopped = Error::unavailable("the model stopped before it answered");
            self.send(Err(stopped), Instant::now());
        }
    }
}

/// Once: whoever passes the response on, as the answer of another model, does not count it again.
fn count_flaws(stats: &Statistics, response: &mut Response) {
    if std::mem::take(&mut response.is_incomplete) {
        stats.missing_outputs.fetch_add(1, Relaxed);
    }
    if std::mem::take(&mut response.has_unexpected_rows) {
        stats.unexpected_rows.fetch_add(1, Relaxed);
    }
}

/// What taking a response out of its model took.
fn output_time(result: &Result<Response>) -> std::result::Result<Duration, &Error> {
    result.as_ref().map(|it| it.timing.compute_output)
}
