//! Rebalances: what a busy instance has not begun moves to one that rests, of this batcher or another.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler, Message, WeakAddr};

use super::{
    actor::{Batcher, Flush},
    shards::{Shard, ShardAddress},
};

/// How long an instance may be busy with one execution before others that rest get what it was
/// handed beside it.
const REBALANCE_INTERVAL: Duration = Duration::from_millis(2);

/// Looks whether an instance that rests could have what others have not begun.
#[derive(Message)]
#[rtype(result = "()")]
struct Rebalance;

/// Takes back what instances that are busy for long have not begun, for one of another batcher.
#[derive(Message)]
#[rtype(result = "()")]
struct TakeBack;

/// Weak: the others must not keep alive a model that nobody holds.
impl ShardAddress for WeakAddr<Batcher> {
    fn call(&self) {
        if let Some(batcher) = self.upgrade() {
            batcher.do_send(Flush);
        }
    }

    fn take_back(&self) {
        if let Some(batcher) = self.upgrade() {
            batcher.do_send(TakeBack);
        }
    }
}

impl Batcher {
    /// Has a look soon whether work can move to an instance that rests.
    pub(super) fn rebalance_soon(&mut self, ctx: &mut Context<Self>) {
        let is_due = || self.may_rebalance() || self.may_take_from_others();
        // Of several batchers another one may have to see to what waits; nobody else sees to this.
        let is_through = || self.shard.is_some() || self.scheduler.len() == 0;
        if !self.is_rebalancing && is_due() && is_through() {
            self.is_rebalancing = true;
            let this = ctx.address().downgrade();
            actix_rt::spawn(async move {
                tokio::time::sleep(REBALANCE_INTERVAL).await;
                if let Some(batcher) = this.upgrade() {
                    batcher.do_send(Rebalance);
                }
            });
        }
    }

    /// Does an instance of another batcher of the model rest?
    pub(super) fn others_rest(&self) -> bool {
        self.shard.as_ref().is_some_and(Shard::others_rest)
    }

    /// Has an instance of this batcher work that it may not have begun, while any one rests?
    fn may_rebalance(&self) -> bool {
        self.pool.may_rebalance(self.others_rest())
    }

    /// Does an instance of this batcher rest while one of another batcher may have such work?
    fn may_take_from_others(&self) -> bool {
        let others_are_ahead = || self.shard.as_ref().is_some_and(Shard::others_are_ahead);
        self.pool.idle() != 0 && others_are_ahead()
    }

    /// What is given back comes as `Requeue`.
    fn take_back(&mut self, ctx: &mut Context<Self>) {
        if self.may_rebalance() && self.pool.give_back() {
            self.rebalance_soon(ctx);
        }
    }
}

impl Handler<Rebalance> for Batcher {
    type Result = ();

    fn handle(&mut self, _: Rebalance, ctx: &mut Self::Context) {
        self.is_rebalancing = false;
        if let Some(shard) = &self.shard
            && self.may_take_from_others()
        {
            shard.take_back_from_others();
        }
        self.take_back(ctx);
    }
}

impl Handler<TakeBack> for Batcher {
    type Result = ();

    fn handle(&mut self, _: TakeBack, ctx: &mut Self::Context) {
        self.take_back(ctx);
    }
}
