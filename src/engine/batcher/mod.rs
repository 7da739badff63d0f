//! Who runs together, and when: the actor in front of a model's instances.

mod concurrent;
mod crossing;
mod light;
mod open;
mod order;
mod readiness;
mod scheduler;
mod timer;
mod warmup;

use std::{
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, WeakAddr, WrapFuture,
};

pub use self::open::{Setup, start};
use self::{
    concurrent::Concurrent,
    light::Weight,
    order::Order,
    readiness::Checkup,
    scheduler::{Next, Scheduler, cancelled, cancelled_first, put_back},
    timer::Timer,
};
use crate::instance::{Again, Local, Outside, Thread, Work};
use troupe_base::{
    config::ModelConfig,
    error::Error,
    model::{Infer, Readiness},
    request::{Pending, Reply, Request, deadlock::WaitReporter},
    statistics::Statistics,
};

/// Work handed to an instance at once should take about this long: long enough to spread the cost
/// of handing over, short enough that other instances and late arrivals are not kept waiting.
const HANDOVER: Duration = Duration::from_micros(500);
/// How often the queue is swept.
const SWEEP: Duration = Duration::from_secs(1);
/// A worker whose executions are shorter than this is given more before it is through: while it
/// runs, its last answers are on their way and the next requests come in.
const AHEAD: Duration = Duration::from_micros(100);
/// Never more executions than this at once.
const MAX_GROUPS: usize = 64;

/// The mailbox of a model: requests in, groups out to whichever instance is idle.
pub(crate) struct Batcher {
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    scheduler: Box<dyn Scheduler>,
    seats: Vec<Seat>,
    /// Seats that can be given work; those that may work ahead are in here twice.
    idle: Vec<usize>,
    /// What the instances have in work, if they can have many executions at once.
    concurrent: Option<Concurrent>,
    /// Requests run as they come; no use to look for company in the mailbox first.
    is_immediate: bool,
    is_flushing: bool,
    /// Not for batches: they get better by waiting.
    works_ahead: bool,
    order: Option<Order>,
    timer: Option<Rc<Timer>>,
    /// Moving average of one execution.
    cost: Duration,
    /// Of instances with threads, unless they are to stay there.
    weight: Option<Weight>,
    waits: WaitReporter,
}

/// Where an instance runs.
enum Seat {
    /// Right here: it takes microseconds.
    Here(Local),
    /// On a thread of its own, except for executions that are known to take microseconds.
    Thread(Thread),
    /// In another process.
    Outside(Outside),
}

impl Seat {
    /// How much work it can be given at once.
    fn depth(&self, works_ahead: bool) -> usize {
        if works_ahead && matches!(self, Seat::Outside(_)) { 2 } else { 1 }
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Flush;

/// Answers those in the queue whose callers have gone. A request of an ensemble keeps the models
/// of its steps, so what waits for a model that never gets to it would keep that model for ever.
#[derive(Message)]
#[rtype(result = "()")]
struct Sweep;

/// An instance can take more.
#[derive(Message)]
#[rtype(result = "()")]
struct Idle {
    seat: usize,
    took: Duration,
}

impl Batcher {
    fn dispatch(&mut self, ctx: &mut Context<Self>) {
        while self.scheduler.len() != 0
            && let Some(place) = self.free_place()
        {
            let share = match self.concurrent {
                // Each execution is through by itself.
                Some(_) => 1,
                None => self.scheduler.len().div_ceil(self.idle.len()),
            };
            let now = Instant::now();
            let (groups, due) = self.gather(share, now);
            if !groups.is_empty() {
                let seat = self.take(place);
                self.run(seat, (groups, now), ctx);
                continue;
            }
            if let (Some(due), Some(timer)) = (due, &self.timer)
                && let Err(error) = timer.set(due)
            {
                tracing::error!("no timer for '{}': {error}", self.config.name);
            }
            return;
        }
    }

    /// Where in `idle` the instance is that does nothing, else one that may work ahead.
    fn free_place(&self) -> Option<usize> {
        if let Some(concurrent) = &self.concurrent {
            return concurrent.least(&self.idle);
        }
        let depth = |seat: usize| self.idle.iter().filter(|it| **it == seat).count();
        let rests = |seat: &usize| depth(*seat) == self.seats[*seat].depth(self.works_ahead);
        let resting = self.idle.iter().rposition(rests);
        let ahead = || (self.cost < AHEAD).then(|| self.idle.len().checked_sub(1)).flatten();
        resting.or_else(|| ahead().filter(|place| self.gets_on(self.idle[*place])))
    }

    /// Is nobody else faster if the instance turns out to wait for a call that takes long?
    fn gets_on(&self, seat: usize) -> bool {
        self.seats.len() == 1
            || !matches!(&self.seats[seat], Seat::Outside(it) if it.calls_others())
    }

    /// The instance at this place of `idle`, about to be given work.
    fn take(&mut self, place: usize) -> usize {
        let seat = self.idle[place];
        if self.concurrent.as_mut().is_none_or(|it| it.begin(seat)) {
            self.idle.swap_remove(place);
        }
        seat
    }

    fn push(&mut self, pending: Pending, ctx: &mut Context<Self>) {
        match self.scheduler.push(pending) {
            Ok(()) => self.flush_soon(ctx),
            Err(refused) => {
                self.stats.pending.fetch_sub(1, Ordering::Relaxed);
                let tag = refused.request.context.tag();
                let full = Error::unavailable(format!("{tag}Exceeds maximum queue size"));
                refused.reply.answer(Err(full));
            }
        }
    }

    /// Once the mailbox is drained: whoever is in it joins.
    fn flush_soon(&mut self, ctx: &mut Context<Self>) {
        if !self.is_flushing && !self.idle.is_empty() {
            self.is_flushing = true;
            ctx.notify(Flush);
        }
    }

    /// Groups for one instance, and when to look again if there are none.
    fn gather(&mut self, share: usize, now: Instant) -> (Vec<Vec<Pending>>, Option<Instant>) {
        let cost = self.cost.as_nanos().max(1);
        let room = (HANDOVER.as_nanos() / cost).clamp(1, MAX_GROUPS as u128) as usize;
        let mut groups = Vec::with_capacity(room.min(share).max(1));
        while groups.len() < room.min(share.max(1)) {
            while let Some(gone) = cancelled_first(self.scheduler.queue()) {
                self.forget(gone);
            }
            match self.scheduler.next(now) {
                Next::Run(group) => {
                    self.stats.pending.fetch_sub(group.len() as u64, Ordering::Relaxed);
                    groups.push(group);
                }
                Next::WaitUntil(due) => return (groups, Some(due)),
                Next::Empty => break,
            }
        }
        (groups, None)
    }

    /// An instance that is right here is never busy when a message comes: nobody ever waits.
    fn run_now(&mut self, pending: Pending) {
        if pending.request.context.is_stopped() {
            return self.forget(pending);
        }
        self.stats.pending.fetch_sub(1, Ordering::Relaxed);
        if let Some(Seat::Here(local)) = self.seats.first_mut() {
            local.run_alone(pending);
        }
    }

    /// Its caller has gone.
    fn forget(&self, pending: Pending) {
        self.stats.pending.fetch_sub(1, Ordering::Relaxed);
        let stopped = pending.request.context.stopped();
        pending.reply.answer(Err(stopped.unwrap_or_else(Error::cancelled)));
    }

    fn run(
        &mut self,
        index: usize,
        (groups, begun): (Vec<Vec<Pending>>, Instant),
        ctx: &mut Context<Self>,
    ) {
        let count = groups.len() as u32;
        match &mut self.seats[index] {
            Seat::Here(local) => {
                local.run(Work(groups), begun);
                self.idle.push(index);
            }
            Seat::Thread(thread) => {
                let work = Work(groups);
                let is_light = self.weight.as_ref().is_some_and(|it| it.is_light(&work));
                let left = if is_light { thread.run_here(work, begun) } else { Some(work) };
                let Some(work) = left else {
                    let took = begun.elapsed() / count;
                    self.weigh(took);
                    self.cost = (self.cost * 7 + took) / 8;
                    self.idle.push(index);
                    return;
                };
                let handled = thread.address.send(work).into_actor(self);
                ctx.spawn(handled.map(move |result, this, ctx| {
                    // An instance that has stopped gets no more work.
                    if let Ok(ran) = result {
                        this.weigh(ran / count);
                        this.is_idle(Idle { seat: index, took: begun.elapsed() / count }, ctx);
                    }
                }));
            }
            Seat::Outside(worker) => {
                // Weak: work in flight must not keep alive a model that nobody holds.
                let this: WeakAddr<Batcher> = ctx.address().downgrade();
                let (same, stats) = (this.clone(), self.stats.clone());
                let idle = move || {
                    if let Some(this) = this.upgrade() {
                        this.do_send(Idle { seat: index, took: begun.elapsed() / count });
                    }
                };
                let again = move |again| {
                    if let Some(this) = same.upgrade() {
                        stats.pending.fetch_add(1, Ordering::Relaxed);
                        this.do_send::<Again>(again);
                    }
                };
                worker.run(Work(groups), idle, again);
            }
        }
    }

    fn weigh(&mut self, execution: Duration) {
        if let Some(weight) = &mut self.weight {
            weight.add(execution);
        }
    }

    fn is_idle(&mut self, Idle { seat, took }: Idle, ctx: &mut Context<Self>) {
        match &mut self.concurrent {
            // Most of that time it may have waited.
            Some(concurrent) => {
                if concurrent.end(seat) {
                    self.idle.push(seat);
                }
            }
            None => {
                self.cost = (self.cost * 7 + took) / 8;
                self.idle.push(seat);
            }
        }
        self.dispatch(ctx);
    }
}

impl Actor for Batcher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let this = ctx.address().downgrade();
        actix_rt::spawn(sweep(this.clone()));
        let Some(timer) = self.timer.clone() else { return };
        actix_rt::spawn(async move {
            while timer.rung().await.is_ok() {
                let Some(this) = this.upgrade() else { return };
                this.do_send(Flush);
            }
        });
    }
}

impl Handler<Pending> for Batcher {
    type Result = ();

    fn handle(&mut self, mut pending: Pending, ctx: &mut Self::Context) {
        if self.is_immediate {
            return self.run_now(pending);
        }
        if let Some(order) = &mut self.order {
            pending.reply = order.enter(pending.reply);
        }
        self.push(pending, ctx);
    }
}

impl Handler<Again> for Batcher {
    type Result = ();

    /// It keeps its place in the order of answers.
    fn handle(&mut self, again: Again, ctx: &mut Self::Context) {
        match again {
            Again::Last(pending) => self.push(pending, ctx),
            Again::Unbegun(pending) => {
                put_back(self.scheduler.queue(), pending);
                self.flush_soon(ctx);
            }
        }
    }
}

impl Handler<Flush> for Batcher {
    type Result = ();

    fn handle(&mut self, _: Flush, ctx: &mut Self::Context) {
        self.is_flushing = false;
        self.dispatch(ctx);
    }
}

/// Wakes the batcher now and then, for as long as somebody holds it.
async fn sweep(batcher: WeakAddr<Batcher>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(batcher) = batcher.upgrade() else { return };
        batcher.do_send(Sweep);
    }
}

impl Handler<Sweep> for Batcher {
    type Result = ();

    fn handle(&mut self, _: Sweep, _: &mut Self::Context) {
        let gone = cancelled(self.scheduler.queue());
        gone.into_iter().for_each(|it| self.forget(it));
        self.look_for_crossings();
    }
}

impl Handler<Idle> for Batcher {
    type Result = ();

    fn handle(&mut self, idle: Idle, ctx: &mut Self::Context) {
        self.is_idle(idle, ctx);
    }
}

/// What the rest of the server holds instead of the actor.
pub struct Mailbox {
    model: Arc<str>,
    /// Their names, in the order of the seats.
    instances: Vec<String>,
    batcher: Addr<Batcher>,
    stats: Arc<Statistics>,
    /// For models that have a say in whether they are ready.
    checkup: Option<Arc<Checkup>>,
}

impl Infer for Mailbox {
    fn infer(&self, request: Request, reply: Reply) {
        self.stats.pending.fetch_add(1, Ordering::Relaxed);
        self.batcher.do_send(Pending { request, reply });
    }

    fn readiness(&self) -> Option<Readiness> {
        self.checkup.as_ref().map(|it| readiness::ask(self, it.clone()))
    }
}
