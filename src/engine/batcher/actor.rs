//! The batcher: the actor that queues a model's requests and hands batches to its instances.

use std::{
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use actix::{Actor, AsyncContext, Context, Handler, Message};

use super::{
    deadlock::ModelReport,
    rate_claims::RateClaims,
    response_order::ResponseOrder,
    scheduler::{Rejected, Scheduler},
    shards::Shard,
    stateful_parts::StatefulParts,
    timer::Timer,
};
use crate::instance::{Findable, InstancePool, Requeue, SlotOwner, SlotReleased};
use troupe_base::{config::ModelConfig, model::Health, request::Pending, statistics::Statistics};

/// So many executions at most run right here before others of the thread have their turn: while
/// they run, other threads may queue as many again.
const MAX_EXECUTIONS_IN_A_ROW: u32 = 64;

/// The mailbox of a model: requests in, batches out to whichever instance is free.
pub(super) struct Batcher {
    pub(super) config: Arc<ModelConfig>,
    pub(super) stats: Arc<Statistics>,
    pub(super) scheduler: Box<dyn Scheduler>,
    pub(super) pool: InstancePool,
    /// Where executions need resources of the server.
    pub(super) rate_claims: Option<RateClaims>,
    /// The batcher itself, as instances see it.
    pub(super) inbox: Arc<dyn SlotOwner>,
    /// Requests that are short run as they come, without a queue: no other one could join them in a
    /// batch.
    pub(super) immediate: Option<Findable>,
    /// A `Flush` is on its way.
    pub(super) is_flushing: bool,
    /// Other tasks of the thread have their turn; a `Resume` is on its way.
    pub(super) is_paused: bool,
    pub(super) order: Option<ResponseOrder>,
    /// Where the scheduler is timed.
    pub(super) timer: Option<Rc<Timer>>,
    /// What the timer is set to.
    pub(super) wakes_at: Option<Instant>,
    pub(super) waits: Arc<ModelReport>,
    /// What it shares with the other batchers of its model, if there are some.
    pub(super) shard: Option<Shard>,
    /// Of the model, which is not ready any more once its batcher has panicked.
    pub(super) health: Arc<Health>,
    /// A `Rebalance` is on its way.
    pub(super) is_rebalancing: bool,
    /// A `Sweep` is on its way.
    pub(super) is_sweep_due: bool,
    /// Where the scheduler is stateful.
    pub(super) stateful: Option<Box<StatefulParts>>,
}

/// Asks the scheduler what can run now.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Flush;

/// The other tasks of the thread have had their turn.
#[derive(Message)]
#[rtype(result = "()")]
struct Resume;

impl Batcher {
    /// Hands batches to free slots until none waits that may run, or others have to have their turn.
    pub(super) fn dispatch(&mut self, ctx: &mut Context<Self>) {
        let mut left = MAX_EXECUTIONS_IN_A_ROW;
        while !self.is_paused {
            let delayed_until = self.hand_over(&mut left);
            if self.expire_due() && self.stateful.is_some() {
                // A slot may have another sequence now, which nobody would hand over.
                continue;
            }
            // There is one timer: it is set for whatever comes first.
            let due = self.scheduler.next_due();
            if let Some(first) = delayed_until.into_iter().chain(due).min() {
                self.wake_at(first);
            }
            self.count_sequences();
            let has_more = self.shard.as_ref().is_some_and(|shard| shard.rest(&self.pool));
            if left == 0 && self.scheduler.len() != 0 {
                return self.pause(ctx);
            }
            if !has_more {
                return;
            }
        }
    }

    /// Goes on when the other tasks of the thread have had their turn. Messages come before them,
    /// also those that whoever queues something sends meanwhile.
    fn pause(&mut self, ctx: &mut Context<Self>) {
        self.is_paused = true;
        let this = ctx.address().downgrade();
        actix_rt::spawn(async move {
            if let Some(batcher) = this.upgrade() {
                batcher.do_send(Resume);
            }
        });
    }

    /// The same, once, while executions are `left`; says until when a batch waits for company.
    fn hand_over(&mut self, left: &mut u32) -> Option<Instant> {
        let mut delayed_until = None;
        while *left != 0
            && self.scheduler.len() != 0
            && let Some(offered) = self.acquire()
        {
            self.find_losses();
            let now = Instant::now();
            let gathered = self.gather(offered, now);
            if gathered.work.0.is_empty() {
                delayed_until = [delayed_until, gathered.delayed_until].into_iter().flatten().min();
                // What waits for company in one slot of a sequence may be whole in another one.
                let others_differ = self.stateful.is_some() || delayed_until.is_none();
                if self.decline(offered) && others_differ {
                    continue;
                }
                return delayed_until;
            }
            if let Some(shard) = &self.shard
                && self.pool.is_worth_sharing(self.scheduler.len())
            {
                // Before the work, which may run right here.
                shard.call_other();
            }
            self.begin_limited(gathered.slot);
            let ended = self.pool.start(gathered.slot, gathered.work, now, &self.inbox);
            if ended != 0 {
                self.released(gathered.slot);
            }
            self.end_limited(gathered.slot, ended != 0);
            *left = left.saturating_sub(ended);
        }
        self.withdraw_claims();
        delayed_until
    }

    /// Queues a request that waits from then on.
    fn push(&mut self, pending: Pending, from: Instant, ctx: &mut Context<Self>) {
        self.sweep_later(ctx);
        self.find_losses();
        let Some(pending) = self.forward(pending) else { return };
        let pushed = self.scheduler.push(pending, from);
        self.count_sequences();
        self.pushed(pushed, ctx);
    }

    fn pushed(&mut self, pushed: std::result::Result<(), Box<Rejected>>, ctx: &mut Context<Self>) {
        match pushed {
            Ok(()) => {
                self.flush_soon(ctx);
                // It may have waited too long before an instance is free again.
                if !self.is_flushing
                    && let Some(due) = self.scheduler.next_due()
                    && self.wakes_at.is_none_or(|at| due < at)
                {
                    self.wake_at(due);
                }
            }
            Err(rejected) => self.reject([*rejected]),
        }
    }

    /// Dispatches behind all that is in the mailbox already, so that those requests join the batch.
    pub(super) fn flush_soon(&mut self, ctx: &mut Context<Self>) {
        if let Some(shard) = &self.shard {
            shard.call();
        } else if !self.is_flushing && self.pool.has_room() {
            self.is_flushing = true;
            ctx.notify(Flush);
        }
    }

    /// Runs a request at once, past the scheduler, if its model can; else gives it back.
    fn run_now(&self, pending: Pending) -> Option<Pending> {
        let Some(findable) = &self.immediate else { return Some(pending) };
        let mut asked = Some(pending);
        findable.instances().run(&mut asked);
        if asked.is_none() {
            self.stats.pending.fetch_sub(1, Ordering::Relaxed);
        }
        asked
    }

    fn wake_at(&mut self, due: Instant) {
        self.wakes_at = Some(due);
        if let Some(timer) = &self.timer
            && let Err(error) = timer.set(due)
        {
            tracing::error!("no timer for '{}': {error}", self.config.name);
        }
    }
}

impl Actor for Batcher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let this = ctx.address().downgrade();
        // What waits for one that is immediate begins the sweeps.
        if self.immediate.is_none() {
            self.sweep_later(ctx);
        }
        self.count_sequences();
        if self.shard.is_some() {
            // The others see that it is there, and it sees what they queued before.
            self.dispatch(ctx);
        }
        let Some(timer) = self.timer.clone() else { return };
        actix_rt::spawn(async move {
            while timer.rung().await.is_ok() {
                let Some(this) = this.upgrade() else { return };
                this.do_send(Flush);
            }
        });
    }
}

/// Its model was unloaded, or it panicked, and nobody will ever take from its queue again.
impl Drop for Batcher {
    fn drop(&mut self) {
        // Rings for the last time: whoever listens holds the timer, and then lets go of it.
        if let Some(timer) = &self.timer
            && let Err(error) = timer.set(Instant::now())
        {
            tracing::error!("the timer of '{}' stays: {error}", self.config.name);
        }
        if std::thread::panicking() {
            if let Some(shard) = &self.shard {
                shard.close();
            }
            // What was queued is answered by being dropped.
            self.stats.pending.store(0, Ordering::Relaxed);
            self.health.break_down();
            tracing::error!("the batcher of '{}' panicked: load it again", self.config.name);
        }
    }
}

impl Handler<Pending> for Batcher {
    type Result = ();

    fn handle(&mut self, pending: Pending, ctx: &mut Self::Context) {
        let Some(mut pending) = self.run_now(pending) else { return };
        if let Some(order) = &mut self.order {
            pending.reply = order.enter(pending.reply);
        }
        let since = pending.reply.since();
        self.push(pending, since, ctx);
    }
}

impl Handler<Requeue> for Batcher {
    type Result = ();

    /// It keeps its place in the order of answers.
    fn handle(&mut self, requeue: Requeue, ctx: &mut Self::Context) {
        if self.shard.as_ref().is_some_and(Shard::is_closed) {
            return;
        }
        self.stats.pending.fetch_add(1, Ordering::Relaxed);
        match requeue {
            Requeue::Rescheduled(pending) => {
                self.sweep_later(ctx);
                let pushed = self.scheduler.reschedule(pending, Instant::now());
                self.pushed(pushed, ctx);
            }
            Requeue::NotStarted(pending) => {
                self.scheduler.put_back(pending);
                self.flush_soon(ctx);
            }
        }
    }
}

impl Handler<SlotReleased> for Batcher {
    type Result = ();

    fn handle(&mut self, released: SlotReleased, ctx: &mut Self::Context) {
        let slot = released.slot();
        self.pool.release(released);
        self.released(slot);
        self.end_limited(slot, true);
        self.look_again();
        self.dispatch(ctx);
        self.rebalance_soon(ctx);
    }
}

impl Handler<Flush> for Batcher {
    type Result = ();

    fn handle(&mut self, _: Flush, ctx: &mut Self::Context) {
        self.is_flushing = false;
        self.wakes_at = None;
        self.look_again();
        if let Some(shard) = &self.shard {
            shard.heard();
            self.sweep_later(ctx);
        }
        self.dispatch(ctx);
        self.rebalance_soon(ctx);
    }
}

impl Handler<Resume> for Batcher {
    type Result = ();

    fn handle(&mut self, _: Resume, ctx: &mut Self::Context) {
        self.is_paused = false;
        self.dispatch(ctx);
        self.rebalance_soon(ctx);
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Makes the batcher panic.
    #[derive(Message)]
    #[rtype(result = "()")]
    pub(crate) struct Break;

    impl Handler<Break> for Batcher {
        type Result = ();

        fn handle(&mut self, _: Break, _: &mut Self::Context) {
            panic!("on purpose");
        }
    }
}
