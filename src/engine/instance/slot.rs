//! A slot is an instance's place in its batcher's pool: taken while it has work, then released.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, Context, Handler, Message, WeakAddr};

use super::local::LocalModel;
use troupe_base::request::Pending;

/// Whoever gives instances work: a batcher, or an instance itself while it warms up. Called on any
/// thread; must not block.
pub trait SlotOwner: Send + Sync {
    /// Called once for each work that was not finished when it was handed over.
    fn release(&self, released: SlotReleased);
    /// Takes back a request that is to be queued anew.
    fn requeue(&self, requeue: Requeue);
}

/// Weak: work in flight must not keep alive a model that nobody holds.
impl<A> SlotOwner for WeakAddr<A>
where
    A: Actor<Context = Context<A>> + Handler<SlotReleased> + Handler<Requeue>,
{
    fn release(&self, released: SlotReleased) {
        if let Some(actor) = self.upgrade() {
            actor.do_send(released);
        }
    }

    fn requeue(&self, requeue: Requeue) {
        if let Some(actor) = self.upgrade() {
            actor.do_send(requeue);
        }
    }
}

/// The instance in this slot can take more work.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SlotReleased {
    pub(super) slot: usize,
    /// Of one execution, from the handover on; `None` if nothing was executed.
    pub(super) took: Option<Duration>,
    /// The model, if it was lent to another thread with the work.
    pub(super) returned: Option<Box<LocalModel>>,
}

impl SlotReleased {
    /// Which slot it is.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

/// A request that is to be queued anew.
#[derive(Message)]
#[rtype(result = "()")]
pub enum Requeue {
    /// The model asked for it: behind all others.
    Rescheduled(Pending),
    /// Nobody began to execute it: among those of its age.
    NotStarted(Pending),
}

/// Which slot gets work, from whom, and since when.
#[derive(Clone, Copy)]
pub(super) struct OfferedSlot<'a> {
    pub(super) owner: &'a Arc<dyn SlotOwner>,
    pub(super) index: usize,
    pub(super) begun: Instant,
}

impl OfferedSlot<'_> {
    /// For work of so many executions that goes on after its handover.
    pub(super) fn guard(&self, executions: u32) -> SlotGuard {
        let OfferedSlot { owner, index, begun } = *self;
        SlotGuard { owner: owner.clone(), index, begun, executions, returned: None }
    }
}

/// Keeps a slot taken until it is dropped.
pub(super) struct SlotGuard {
    owner: Arc<dyn SlotOwner>,
    index: usize,
    begun: Instant,
    /// 0 if the work was turned away: its time says nothing.
    executions: u32,
    returned: Option<Box<LocalModel>>,
}

impl SlotGuard {
    pub(super) fn owner(&self) -> &dyn SlotOwner {
        &*self.owner
    }

    /// Releases the slot and gives back the model that was lent with the work.
    pub(super) fn give_back(mut self, model: Box<LocalModel>) {
        self.returned = Some(model);
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let took = (self.executions != 0).then(|| self.begun.elapsed() / self.executions);
        let returned = self.returned.take();
        self.owner.release(SlotReleased { slot: self.index, took, returned });
    }
}
