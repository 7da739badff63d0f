//! A model whose answers are kept: looks a request up before it is queued.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::time::{sleep, sleep_until};

use super::{
    answer::{self, KeptAnswer},
    flights::{Flights, Join, Urgency},
    follower::{Follower, FollowerTimeout},
    key::{AnswerKey, KeyScope},
    lead::{Asker, Lead, LeadModel},
    local::{LocalStore, ModelCap},
    redis_value,
    store::{SharedCache, Store},
    warning::Warning,
};
use troupe_base::{
    error::Error,
    model::Infer,
    request::{Context, Correlation, Reply, Request, Response},
    statistics::{Statistics, Timing},
    trace::CacheHit,
};

/// An answer of more bytes is copied by another thread, and after it was given.
const MAX_COPIED_HERE: u64 = 1 << 20;
/// How often those that wait are looked through for such as have gone.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Asks a model only what nobody asked before.
pub(super) struct CachedModel(Arc<CachedModelState>);

/// What it is made of.
pub(super) struct CachedModelSetup {
    pub(super) inner: Arc<dyn Infer>,
    pub(super) cache: Arc<SharedCache>,
    pub(super) scope: KeyScope,
    pub(super) stats: Arc<Statistics>,
    pub(super) ttl: Option<Duration>,
    pub(super) cap: Option<ModelCap>,
    pub(super) timeout: FollowerTimeout,
}

/// Shared with the requests that it executes.
pub(super) struct CachedModelState {
    setup: CachedModelSetup,
    flights: Flights<Follower>,
    /// A task looks through those that wait.
    is_swept: AtomicBool,
    warning: Warning,
}

impl CachedModel {
    pub(super) fn new(setup: CachedModelSetup) -> CachedModel {
        let (flights, warning) = (Flights::default(), Warning::default());
        let is_swept = AtomicBool::default();
        CachedModel(Arc::new(CachedModelState { setup, flights, is_swept, warning }))
    }
}

impl Infer for CachedModel {
    fn infer(&self, request: Request, reply: Reply) {
        let state = &self.0;
        let inner = &state.setup.inner;
        // Whoever captures tensors between steps wants them executed.
        if !is_kept(&request.context) || inner.taps().is_some_and(|it| it.is_on()) {
            return inner.infer(request, reply);
        }
        let bytes: usize = request.inputs.iter().flatten().map(|it| it.data().len()).sum();
        if bytes <= state.setup.cache.hasher.max_bytes_here() {
            return state.look_up(request, reply);
        }
        let weak = Arc::downgrade(state);
        state.setup.cache.runtime.spawn_blocking(move || {
            // Without the model the reply is dropped, which answers it.
            if let Some(state) = weak.upgrade() {
                state.look_up(request, reply);
            }
        });
    }

    fn inner(&self) -> Option<&dyn Infer> {
        Some(&*self.0.setup.inner)
    }
}

/// What depends on the requests before it has no answer that could be kept, and a warm-up is to be
/// executed.
fn is_kept(context: &Context) -> bool {
    !context.is_warmup && context.correlation == Correlation::None && context.flags == 0
}

impl CachedModelState {
    fn look_up(self: &Arc<Self>, request: Request, reply: Reply) {
        let begun = Instant::now();
        let key = self.setup.cache.hasher.key(&self.setup.scope, &request);
        match &self.setup.cache.store {
            Store::Local(local) => self.look_up_here(local, key, begun, request, reply),
            Store::Redis(_) => {
                let lookup = begun.elapsed();
                let (lead, request) = match self.join(key, Follower::new(request, reply, lookup)) {
                    Some(it) => it,
                    None => return,
                };
                let look_up = self.clone().look_up_there(begun, lead, request);
                self.setup.cache.runtime_here().spawn(look_up);
            }
        }
    }

    fn look_up_here(
        self: &Arc<Self>,
        local: &LocalStore,
        key: AnswerKey,
        begun: Instant,
        request: Request,
        reply: Reply,
    ) {
        let found = local.get(key, begun);
        let now = Instant::now();
        let lookup = now.saturating_duration_since(begun);
        if let Some(answer) = found {
            let asker = Asker { reply, span: request.context.span.clone(), lookup };
            return self.hit(asker, |timing| answer.response(timing), now);
        }
        let Some((lead, request)) = self.join(key, Follower::new(request, reply, lookup)) else {
            return;
        };
        // Somebody may have kept it since: whoever leads keeps the answer before it stops leading.
        match local.get(key, now) {
            Some(answer) => lead.found(&answer.response(Timing::default())),
            None => self.execute(lead, request),
        }
    }

    async fn look_up_there(
        self: Arc<Self>,
        begun: Instant,
        mut lead: Lead<Self>,
        request: Request,
    ) {
        let Store::Redis(redis) = &self.setup.cache.store else { return };
        let found = redis.get(lead.key()).await;
        lead.lookup = begun.elapsed();
        match found.and_then(|bytes| self.read(bytes)) {
            Some(response) => lead.found(&response),
            None => self.execute(lead, request),
        }
    }

    fn read(&self, bytes: Bytes) -> Option<Response> {
        let response = redis_value::decode(bytes, self.setup.scope.outputs);
        if response.is_none() {
            let model = &self.setup.scope.model;
            self.warning.log(|| format!("what the cache holds for '{model}' is no answer of it"));
        }
        response
    }

    /// `None`: it waits for an equal request. Otherwise it is to be executed.
    fn join(self: &Arc<Self>, key: AnswerKey, waiting: Follower) -> Option<(Lead<Self>, Request)> {
        // A model that calls this one holds an instance while it waits, and whoever finds deadlocks
        // does not see for whom.
        let may_wait = waiting.context.call_chain.is_none();
        let Context { priority, timeout_us, .. } = *waiting.context;
        let urgency = Urgency { priority, timeout_us };
        let expiry = waiting.expiry(&self.setup.timeout);
        let (waiting, leads) = match self.flights.join(key, urgency, may_wait, waiting) {
            Join::Follows => {
                self.sweep_later();
                if let Some(at) = expiry {
                    self.expire_at(at, key);
                }
                return None;
            }
            Join::Leads(waiting) => (waiting, true),
            Join::Alone(waiting) => (waiting, false),
        };
        Some(self.lead(key, waiting, leads))
    }

    fn lead(
        self: &Arc<Self>,
        key: AnswerKey,
        waiting: Follower,
        leads: bool,
    ) -> (Lead<Self>, Request) {
        let Follower { request, asker, .. } = waiting;
        (Lead::new(Arc::downgrade(self), key, asker, leads), request)
    }

    /// Answers those that have waited for too long then, as the queue would have done, and those
    /// that wait with them later.
    fn expire_at(self: &Arc<Self>, at: Instant, key: AnswerKey) {
        let weak = Arc::downgrade(self);
        let task = async move {
            sleep_until(at.into()).await;
            if let Some(state) = weak.upgrade() {
                state.expire(key, at.max(Instant::now()));
            }
        };
        let runtime = self.setup.cache.runtime_here();
        self.flights.look_at(key, at, || runtime.spawn(task).abort_handle());
    }

    fn expire(self: &Arc<Self>, key: AnswerKey, now: Instant) {
        let expiry = |it: &Follower| it.expiry(&self.setup.timeout);
        for waiting in self.flights.expire(key, |it| expiry(it).is_some_and(|at| at <= now)) {
            waiting.asker.reply.answer(Err(Error::timeout_expired()));
        }
        if let Some(next) = self.flights.next_expiry(key, expiry) {
            self.expire_at(next, key);
        }
    }

    /// Answers those that wait and have gone, once in a while until nobody waits.
    fn sweep_later(self: &Arc<Self>) {
        if self.is_swept.swap(true, SeqCst) {
            return;
        }
        let weak = Arc::downgrade(self);
        self.setup.cache.runtime_here().spawn(async move {
            loop {
                sleep(SWEEP_INTERVAL).await;
                let Some(state) = weak.upgrade() else { return };
                if state.sweep() {
                    continue;
                }
                state.is_swept.store(false, SeqCst);
                // Somebody may have come just now, and have found that there is a task.
                if !state.sweep() || state.is_swept.swap(true, SeqCst) {
                    return;
                }
            }
        });
    }

    /// Does anybody still wait?
    fn sweep(&self) -> bool {
        let (stopped, is_waited) = self.flights.sweep(|it| it.context.is_stopped());
        answer_stopped(stopped);
        is_waited
    }

    fn execute(&self, lead: Lead<Self>, request: Request) {
        self.setup.cache.counters.miss(lead.lookup);
        let reply = lead.into_reply();
        self.setup.inner.infer(request, reply);
    }

    /// Answers a request that is not executed: the answer was kept, or an equal one is executed.
    fn answer(
        &self,
        Asker { reply, span, lookup }: Asker,
        response: impl FnOnce(Timing) -> Response,
        now: Instant,
        is_coalesced: bool,
    ) {
        let queue = now.saturating_duration_since(reply.since());
        self.setup.cache.counters.hit(lookup);
        if let Some(stats) = &self.setup.stats.extra.cache {
            stats.hit(lookup);
            stats.hit_waited(queue);
            if is_coalesced {
                stats.coalesced();
            }
        }
        if let Some(span) = span {
            span.hit(CacheHit { at: now, is_coalesced });
        }
        reply.answer_at(Ok(response(Timing { queue, ..Timing::default() })), now);
    }

    fn keep_now(&self, key: AnswerKey, response: &Response, now: Instant) {
        match &self.setup.cache.store {
            Store::Local(local) => self.keep_here(local, key, response, now),
            Store::Redis(_) => self.keep_there(key, response),
        }
    }

    fn keep_soon(self: &Arc<Self>, key: AnswerKey, response: Response) {
        let weak = Arc::downgrade(self);
        self.setup.cache.runtime.spawn_blocking(move || {
            let Some(state) = weak.upgrade() else { return };
            let begun = Instant::now();
            state.keep_now(key, &response, begun);
            state.setup.cache.counters.inserted(begun.elapsed());
        });
    }

    fn keep_here(&self, local: &LocalStore, key: AnswerKey, response: &Response, now: Instant) {
        let cap = self.setup.cap.as_ref();
        if let Err(text) = local.check(answer::weight(response), cap) {
            let model = &self.setup.scope.model;
            let key = key.0;
            return self.warning.log(|| {
                format!(
                    "Failed to insert key [{key}] into response cache: {text} (model '{model}')"
                )
            });
        }
        let expires = self.setup.ttl.and_then(|it| now.checked_add(it));
        if let Some(kept) = KeptAnswer::copy(response, self.setup.scope.generation, expires) {
            local.insert(key, kept, cap);
        }
    }

    fn keep_there(&self, key: AnswerKey, response: &Response) {
        let (value, ttl) = (redis_value::encode(response), self.setup.ttl);
        let cache = self.setup.cache.clone();
        self.setup.cache.runtime_here().spawn(async move {
            if let Store::Redis(redis) = &cache.store {
                redis.insert(key, value, ttl).await;
            }
        });
    }
}

impl LeadModel for CachedModelState {
    fn hit(&self, asker: Asker, response: impl FnOnce(Timing) -> Response, now: Instant) {
        self.answer(asker, response, now, false);
    }

    fn answer_followers(&self, key: AnswerKey, response: &Response, is_executed: bool) {
        let followers = self.flights.end(key);
        let now = Instant::now();
        for waiting in followers {
            if let Some(error) = waiting.context.stopped() {
                waiting.asker.reply.answer_at(Err(error), now);
                continue;
            }
            let response = |timing| Response { timing, ..response.clone() };
            self.answer(waiting.asker, response, now, is_executed);
        }
    }

    fn fail_followers(&self, key: AnswerKey, error: &Error) {
        let now = Instant::now();
        for waiting in self.flights.end(key) {
            let error = waiting.context.stopped().unwrap_or_else(|| error.clone());
            waiting.asker.reply.answer_at(Err(error), now);
        }
    }

    fn pass_on(self: &Arc<Self>, key: AnswerKey, was_refused: bool) {
        let (next, stopped) = self.flights.next(key, |it| !it.context.is_stopped());
        answer_stopped(stopped);
        let Some(next) = next else { return };
        let (lead, request) = self.lead(key, next, true);
        let (state, lead) = (self.clone(), lead.after(was_refused));
        // Not from here: one after the other may be refused at once.
        self.setup.cache.runtime_here().spawn(async move { state.execute(lead, request) });
    }

    fn keep(self: &Arc<Self>, key: AnswerKey, response: &Response, lookup: Duration) {
        let begun = Instant::now();
        if answer::is_sound(response) {
            match answer::weight(response) <= MAX_COPIED_HERE {
                true => self.keep_now(key, response, begun),
                false => self.keep_soon(key, response.clone()),
            }
        }
        let insertion = begun.elapsed();
        self.setup.cache.counters.inserted(insertion);
        if let Some(stats) = &self.setup.stats.extra.cache {
            stats.miss(lookup + insertion);
        }
    }
}

/// What nobody can ask for any more makes room.
impl Drop for CachedModelState {
    fn drop(&mut self) {
        let (cache, generation) = (self.setup.cache.clone(), self.setup.scope.generation);
        if cache.is_shared() {
            return;
        }
        // It looks at all answers.
        self.setup.cache.runtime.spawn_blocking(move || {
            if let Store::Local(local) = &cache.store {
                local.forget(generation);
            }
        });
    }
}

fn answer_stopped(followers: Vec<Follower>) {
    for waiting in followers {
        let error = waiting.context.stopped().unwrap_or_else(Error::cancelled);
        waiting.asker.reply.answer(Err(error));
    }
}
