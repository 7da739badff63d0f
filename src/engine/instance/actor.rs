//! The actor of an instance: warms it up, asks whether it is ready, and replaces an engine that
//! ends.
//!
//! It lives on its batcher's thread, whatever runs its executions. Work of the batcher does not
//! come by message: the pool's handle calls the instance, which is on the same thread, and so saves
//! two messages for each execution.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, WeakAddr};
use tokio::{sync::oneshot, time::sleep};

use super::{
    engine::Capacity,
    local::LocalModel,
    open::{InstanceOpener, OpenedModel},
    slot::{OfferedSlot, Requeue, SlotOwner, SlotReleased, SlotStopped},
    state::{Handover, Instance, InstanceGeneration},
    work::InstanceWork,
};
use troupe_base::{
    backend::Remote,
    error::{Error, Result},
    request::Pending,
};

/// How often an instance that stays down looks whether others of its model are up.
const DOWN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// One loaded copy of a model.
pub struct InstanceActor {
    instance: Rc<RefCell<Instance>>,
    /// For work that the actor gives its instance itself.
    inbox: Arc<dyn SlotOwner>,
    /// Groups that wait for their warm-up.
    warm_ups: VecDeque<Vec<Pending>>,
    is_warming_up: bool,
}

/// The instance in a slot of its batcher's pool; on the same thread as its actor.
pub(super) struct InstanceHandle {
    /// Kept: an actor whose last address is dropped stops, mail or no mail.
    address: Addr<InstanceActor>,
    instance: Rc<RefCell<Instance>>,
}

/// One execution, past the queue of the batcher. Only for a model that nobody else can ask yet.
#[derive(Message)]
#[rtype(result = "()")]
pub struct WarmUp(pub Vec<Pending>);

/// Asks the model's own code whether it is ready; one that has no say agrees.
#[derive(Message)]
#[rtype(result = "()")]
pub struct CheckReady(pub oneshot::Sender<Result<()>>);

/// The engine has gone down: another one is needed.
#[derive(Message)]
#[rtype(result = "()")]
struct Reopen;

/// The engine of this generation has ended by itself.
#[derive(Message)]
#[rtype(result = "()")]
struct EngineEnded {
    generation: u64,
}

impl InstanceActor {
    /// Starts the actor of an opened model on the current thread, its batcher's.
    pub(super) fn attach(opener: InstanceOpener, opened: OpenedModel) -> Result<InstanceHandle> {
        let attached = opener.attach(opened)?;
        let mut made = None;
        let address = InstanceActor::create(|ctx| {
            let this = ctx.address().downgrade();
            let actor = this.clone();
            let on_down = move || {
                if let Some(actor) = actor.upgrade() {
                    actor.do_send(Reopen);
                }
            };
            let instance = Instance::new(opener, attached.engine, on_down);
            watch(attached.ended, instance.generation(), this.clone());
            let instance = Rc::new(RefCell::new(instance));
            made = Some(instance.clone());
            let warm_ups = VecDeque::new();
            InstanceActor { instance, inbox: Arc::new(this), warm_ups, is_warming_up: false }
        });
        let instance = made.expect("`create` has called its argument");
        Ok(InstanceHandle { address, instance })
    }

    fn warm_up(&mut self) {
        while !self.is_warming_up
            && let Some(group) = self.warm_ups.pop_front()
        {
            let slot = OfferedSlot { owner: &self.inbox, index: 0, begun: Instant::now() };
            let progress = self.instance.borrow_mut().start(InstanceWork(vec![group]), slot);
            self.is_warming_up = matches!(progress, Handover::Later);
        }
    }
}

impl InstanceHandle {
    pub(super) fn address(&self) -> &Addr<InstanceActor> {
        &self.address
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.instance.borrow().capacity()
    }

    pub(super) fn generation(&self) -> InstanceGeneration {
        self.instance.borrow_mut().worker_generation()
    }

    pub(super) fn start(&self, work: InstanceWork, slot: OfferedSlot<'_>) -> Handover {
        self.instance.borrow_mut().start(work, slot)
    }

    pub(super) fn may_run_now(&self) -> bool {
        self.instance.borrow().may_run_now()
    }

    pub(super) fn instance(&self) -> &Rc<RefCell<Instance>> {
        &self.instance
    }

    pub(super) fn take_back(&self, returned: Box<LocalModel>) {
        self.instance.borrow_mut().take_back(returned);
    }

    /// It is given no work any more: releases the slot that it keeps while it is down.
    pub(super) fn let_go(&self) {
        // Dropped when the instance is not borrowed any more.
        let kept = self.with_worker(|worker| worker.let_go());
        drop(kept);
    }

    /// Lets go of the engine, unless there is something in work.
    pub(super) fn retire(&self) -> bool {
        let is_quiet = self.with_worker(|worker| worker.is_quiet()).unwrap_or(true);
        if is_quiet {
            self.instance.borrow_mut().retire();
        }
        is_quiet
    }

    /// Has it gone for good?
    pub(super) fn is_retired(&self) -> bool {
        self.instance.borrow().is_retired()
    }

    /// Asks the process that the instance is attached to; `None` if it has none.
    pub(super) fn with_worker<T>(&self, ask: impl FnOnce(&mut dyn Remote) -> T) -> Option<T> {
        self.instance.borrow_mut().worker().map(ask)
    }
}

impl Actor for InstanceActor {
    type Context = Context<Self>;
}

impl Handler<WarmUp> for InstanceActor {
    type Result = ();

    fn handle(&mut self, WarmUp(group): WarmUp, _: &mut Self::Context) {
        self.warm_ups.push_back(group);
        self.warm_up();
    }
}

impl Handler<SlotReleased> for InstanceActor {
    type Result = ();

    fn handle(&mut self, released: SlotReleased, _: &mut Self::Context) {
        if let Some(returned) = released.returned {
            self.instance.borrow_mut().take_back(returned);
        }
        self.is_warming_up = false;
        self.warm_up();
    }
}

impl Handler<SlotStopped> for InstanceActor {
    type Result = ();

    /// A warm-up has no grant.
    fn handle(&mut self, _: SlotStopped, _: &mut Self::Context) {}
}

impl Handler<Requeue> for InstanceActor {
    type Result = ();

    /// A rescheduled request goes to the same instance; one without an engine failed its warm-up.
    fn handle(&mut self, requeue: Requeue, _: &mut Self::Context) {
        match requeue {
            Requeue::Rescheduled(pending) => {
                self.warm_ups.push_back(vec![pending]);
                self.warm_up();
            }
            Requeue::NotStarted(pending) => {
                let error = Error::unavailable("its worker has ended during the warm-up");
                pending.reply.answer(Err(error));
            }
        }
    }
}

impl Handler<CheckReady> for InstanceActor {
    type Result = ();

    fn handle(&mut self, CheckReady(answer): CheckReady, _: &mut Self::Context) {
        match self.instance.borrow_mut().worker() {
            Some(worker) => worker.check(answer),
            // Whoever asked may have given up.
            None => drop(answer.send(Ok(()))),
        }
    }
}

impl Handler<EngineEnded> for InstanceActor {
    type Result = ();

    fn handle(&mut self, ended: EngineEnded, _: &mut Self::Context) {
        let mut instance = self.instance.borrow_mut();
        if instance.generation() == ended.generation {
            instance.ended("its thread has ended");
        }
    }
}

impl Handler<Reopen> for InstanceActor {
    type Result = ();

    fn handle(&mut self, _: Reopen, ctx: &mut Self::Context) {
        let (instance, actor) = (Rc::downgrade(&self.instance), ctx.address().downgrade());
        // Not a future of the actor: that would keep it, and its model, after its last address.
        actix_rt::spawn(async move {
            reopen(instance, actor).await;
        });
    }
}

/// Opens the model until that succeeds, with back-off; `None` if the instance goes before.
async fn reopen(instance: Weak<RefCell<Instance>>, actor: WeakAddr<InstanceActor>) -> Option<()> {
    let (opener, mut pause) = {
        let held = instance.upgrade()?;
        let instance = held.borrow();
        (instance.opener.clone(), instance.pause)
    };
    loop {
        back_off(&instance, pause).await?;
        let opened = opener.open().await;
        let held = instance.upgrade()?;
        if held.borrow().is_retired() {
            return None;
        }
        match opened.and_then(|opened| opener.attach(opened)) {
            Ok(attached) => {
                let mut instance = held.borrow_mut();
                instance.up(attached.engine);
                watch(attached.ended, instance.generation(), actor);
                return Some(());
            }
            Err(error) => {
                let mut instance = held.borrow_mut();
                instance.stays_down(&error);
                pause = instance.pause;
            }
        }
    }
}

/// Waits. Meanwhile requests fail unless another instance can take them.
async fn back_off(instance: &Weak<RefCell<Instance>>, pause: Duration) -> Option<()> {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(());
        }
        instance.upgrade().filter(|it| !it.borrow().is_retired())?.borrow_mut().let_fail();
        sleep(left.min(DOWN_CHECK_INTERVAL)).await;
    }
}

/// Tells the actor when an engine has ended by itself.
fn watch(ended: Option<oneshot::Receiver<()>>, generation: u64, actor: WeakAddr<InstanceActor>) {
    let Some(ended) = ended else { return };
    actix_rt::spawn(async move {
        // Nothing is ever sent: the sender is dropped.
        let _ = ended.await;
        if let Some(actor) = actor.upgrade() {
            actor.do_send(EngineEnded { generation });
        }
    });
}
