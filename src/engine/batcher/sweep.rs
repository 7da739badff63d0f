//! Sweeps of a batcher's queue: requests whose callers have gone are answered, deadlocks are found.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler, Message};

use super::{actor::Batcher, deadlock, shards::Shard};

/// How often the queue is swept.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Answers those in the queue whose callers have gone. A request of an ensemble keeps the models
/// of its steps, so what waits for a model that never gets to it would keep that model for ever.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Sweep;

impl Batcher {
    /// Sweeps the queue before long. Not a future of the actor: that would keep it, and its model,
    /// after its last address.
    pub(super) fn sweep_later(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.is_sweep_due, true) {
            let this = ctx.address().downgrade();
            actix_rt::spawn(async move {
                tokio::time::sleep(SWEEP_INTERVAL).await;
                if let Some(batcher) = this.upgrade() {
                    batcher.do_send(Sweep);
                }
            });
        }
    }
}

impl Handler<Sweep> for Batcher {
    type Result = ();

    fn handle(&mut self, _: Sweep, ctx: &mut Self::Context) {
        self.is_sweep_due = false;
        let stopped = self.scheduler.stopped();
        self.reject(stopped);
        self.withdraw_claims();
        self.forget_predecessor();
        if self.stateful.is_some() {
            // Nobody says that an instance is up again.
            self.find_losses();
            self.flush_soon(ctx);
        }
        let shard = self.shard.as_ref().map_or(0, Shard::index);
        let claims = self.rate_claims.as_ref();
        deadlock::check(&self.waits, shard, &self.pool, &*self.scheduler, claims);
        let may_queue = self.scheduler.len() != 0 || self.pool.is_busy();
        if self.immediate.is_none() || may_queue {
            self.sweep_later(ctx);
        }
    }
}
