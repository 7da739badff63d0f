//! Instances that come and go while their batcher works: added with nothing to do, then opened for
//! work; closed for work, then let go once they are through.

use std::time::Duration;

use actix::{Addr, AsyncContext, Context, Handler, Message};
use tokio::sync::oneshot;

use super::actor::Batcher;
use crate::instance::{InstanceActor, InstanceOpener, OpenedModel};
use troupe_base::error::Result;

/// How often a closed instance is asked whether it is through.
const CLOSED_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Adds an instance that is given no work yet.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct AddInstance {
    pub(super) opener: InstanceOpener,
    pub(super) opened: OpenedModel,
    pub(super) answer: oneshot::Sender<Result<AddedInstance>>,
}

/// Where an instance was added.
pub(super) struct AddedInstance {
    pub(super) slot: usize,
    pub(super) address: Addr<InstanceActor>,
}

/// The instance in this slot is given work from now on.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct OpenSlot(pub(super) usize);

/// The instance in this slot is given no more work, and ends once it is through.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct CloseSlot(pub(super) usize);

impl Batcher {
    /// Requests that run as they come find the instances that there are now.
    fn find_instances(&mut self) {
        if let Some(immediate) = &mut self.immediate {
            immediate.replace(self.pool.immediate());
        }
    }
}

impl Handler<AddInstance> for Batcher {
    type Result = ();

    fn handle(&mut self, added: AddInstance, _: &mut Context<Self>) {
        let AddInstance { opener, opened, answer } = added;
        let attached = self.pool.add(opener, opened).inspect_err(|_| self.health.leave(true));
        let attached = attached.map(|(slot, address)| AddedInstance { slot, address });
        // Whoever scales may have given up: then the instance does nothing.
        let _ = answer.send(attached);
    }
}

impl Handler<OpenSlot> for Batcher {
    type Result = ();

    fn handle(&mut self, OpenSlot(slot): OpenSlot, ctx: &mut Context<Self>) {
        self.pool.open(slot);
        self.find_instances();
        self.dispatch(ctx);
        self.rebalance_soon(ctx);
    }
}

impl Handler<CloseSlot> for Batcher {
    type Result = ();

    fn handle(&mut self, CloseSlot(slot): CloseSlot, ctx: &mut Context<Self>) {
        if self.pool.close(slot) {
            self.forget_claim(slot);
            self.find_instances();
            self.dispatch(ctx);
        }
        if !self.pool.retire(slot) {
            let this = ctx.address().downgrade();
            actix_rt::spawn(async move {
                tokio::time::sleep(CLOSED_CHECK_INTERVAL).await;
                if let Some(batcher) = this.upgrade() {
                    batcher.do_send(CloseSlot(slot));
                }
            });
        }
    }
}
