//! A slot is an instance's place in its batcher's pool: taken while it has work, then released.

use std::{
    cell::Cell,
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
    /// The work in this slot executes no more, though the slot is not released yet.
    fn stopped(&self, slot: SlotStopped);
    /// Takes back a request that is to be queued anew.
    fn requeue(&self, requeue: Requeue);
}

/// Weak: work in flight must not keep alive a model that nobody holds.
impl<A> SlotOwner for WeakAddr<A>
where
    A: Actor<Context = Context<A>>
        + Handler<SlotReleased>
        + Handler<SlotStopped>
        + Handler<Requeue>,
{
    fn release(&self, released: SlotReleased) {
        if let Some(actor) = self.upgrade() {
            actor.do_send(released);
        }
    }

    fn stopped(&self, stopped: SlotStopped) {
        if let Some(actor) = self.upgrade() {
            actor.do_send(stopped);
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
    /// The same without what it waited before and after, if the instance measures that.
    pub(super) executed: Option<Duration>,
    /// The model, if it was lent to another thread with the work.
    pub(super) returned: Option<Box<LocalModel>>,
}

impl SlotReleased {
    /// Which slot it is.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

/// The work in this slot executes no more: its instance is down, and keeps the slot until it is up.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SlotStopped(pub usize);

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
        SlotGuard {
            owner: owner.clone(),
            index,
            begun,
            executions,
            measured: Cell::default(),
            returned: None,
            is_released: Cell::default(),
        }
    }
}

/// Keeps a slot taken until it is released, or dropped.
pub(super) struct SlotGuard {
    owner: Arc<dyn SlotOwner>,
    index: usize,
    begun: Instant,
    /// 0 if the work was turned away: its time says nothing.
    executions: u32,
    /// Executions that the instance measured itself, and how long they took together.
    measured: Cell<(u32, Duration)>,
    returned: Option<Box<LocalModel>>,
    is_released: Cell<bool>,
}

impl SlotGuard {
    pub(super) fn owner(&self) -> &dyn SlotOwner {
        &*self.owner
    }

    /// An execution took this long, without what it waited before and after; zero: not measured.
    pub(super) fn measured(&self, took: Duration) {
        if !took.is_zero() {
            let (executions, before) = self.measured.get();
            self.measured.set((executions + 1, before + took));
        }
    }

    /// Nothing executes in the slot any more.
    pub(super) fn has_stopped(&self) {
        self.owner.stopped(SlotStopped(self.index));
    }

    /// Releases the slot and gives back the model that was lent with the work.
    pub(super) fn give_back(mut self, model: Box<LocalModel>) {
        self.returned = Some(model);
    }

    /// Releases the slot now: whatever is left to do is no work of the instance.
    pub(super) fn release(&self) {
        self.release_with(None);
    }

    fn release_with(&self, returned: Option<Box<LocalModel>>) {
        if self.is_released.replace(true) {
            return;
        }
        let took = (self.executions != 0).then(|| self.begun.elapsed() / self.executions);
        let (executions, together) = self.measured.get();
        let executed = together.checked_div(executions);
        self.owner.release(SlotReleased { slot: self.index, took, executed, returned });
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let returned = self.returned.take();
        self.release_with(returned);
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Releases(Mutex<Vec<SlotReleased>>);

    impl SlotOwner for Releases {
        fn release(&self, released: SlotReleased) {
            self.0.lock().push(released);
        }
        fn stopped(&self, _: SlotStopped) {}
        fn requeue(&self, _: Requeue) {}
    }

    /// What an execution is said to have taken, in milliseconds, of so many that were handed over ten
    /// seconds ago and of which the instance measured these.
    fn check(executions: u32, measured: &[u64], expected: Option<u64>) {
        let releases = Arc::new(Releases::default());
        let owner: Arc<dyn SlotOwner> = releases.clone();
        let begun = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let guard = OfferedSlot { owner: &owner, index: 0, begun }.guard(executions);
        measured.iter().for_each(|took| guard.measured(Duration::from_millis(*took)));
        drop(guard);
        let released = releases.0.lock().pop().unwrap();
        let seconds = |share: u32| Duration::from_secs(10) / share;
        assert!(released.took.is_none_or(|it| seconds(executions) <= it));
        assert_eq!(released.took.is_none(), executions == 0);
        let executed = released.executed.map(|it| it.as_millis() as u64);
        assert_eq!(executed, expected, "{executions} executions, measured {measured:?}");
    }

    #[test]
    fn an_execution_is_as_long_as_the_instance_says_and_from_the_handover_on() {
        check(2, &[], None);
        check(2, &[0, 0], None);
        check(2, &[10, 30], Some(20));
        check(2, &[10, 0], Some(10));
        check(0, &[], None);
    }
}
