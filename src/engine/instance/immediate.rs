//! Instances that execute at once on the thread that asks: found there, called without a message.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use super::state::Instance;
use troupe_base::request::Pending;

/// Instances of a model on this thread, with executions that end before a call of them returns.
pub struct ImmediateInstances(pub(super) Vec<Rc<RefCell<Instance>>>);

impl ImmediateInstances {
    /// Takes, runs and answers what is asked; leaves it there if no instance can take it now: it may
    /// be long, all are down, or each is executing, and its answer has led back here.
    pub fn run(&self, asked: &mut Option<Pending>) {
        let Some(Pending { request, .. }) = asked else { return };
        let takes = |it: &&Rc<RefCell<Instance>>| {
            it.try_borrow().is_ok_and(|instance| instance.runs_now(request))
        };
        let Some(instance) = self.0.iter().find(takes) else { return };
        if let Some(error) = request.context.stopped() {
            if let Some(pending) = asked.take() {
                pending.reply.answer(Err(error));
            }
            return;
        }
        let mut due = None;
        instance.borrow_mut().run_now(asked, &mut due);
        // Not before: whoever is answered may ask this instance again.
        if let Some(due) = due {
            due.give();
        }
    }
}

/// Where instances are found on their thread. On others they are not, whatever is there.
#[derive(Clone, Copy)]
pub struct ImmediateKey {
    index: usize,
    serial: u64,
}

/// Keeps instances to be found; on their thread.
pub struct Findable {
    key: ImmediateKey,
    instances: Rc<ImmediateInstances>,
}

/// Of all threads together, so that no two keys are the same.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// Instances, and the serial of their key.
type Found = (u64, Rc<ImmediateInstances>);

thread_local! {
    static FOUND_HERE: RefCell<Vec<Option<Found>>> = const { RefCell::new(Vec::new()) };
}

impl Findable {
    /// Instances of this thread.
    pub fn new(instances: ImmediateInstances) -> Findable {
        let instances = Rc::new(instances);
        let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        let index = FOUND_HERE.with_borrow_mut(|all| {
            let free = all.iter().position(Option::is_none).unwrap_or_else(|| {
                all.push(None);
                all.len() - 1
            });
            all[free] = Some((serial, instances.clone()));
            free
        });
        Findable { key: ImmediateKey { index, serial }, instances }
    }

    /// Others are found in their place.
    pub fn replace(&mut self, instances: ImmediateInstances) {
        self.instances = Rc::new(instances);
        let found = Some((self.key.serial, self.instances.clone()));
        FOUND_HERE.with_borrow_mut(|all| all[self.key.index] = found);
    }

    /// What they are found by.
    pub fn key(&self) -> ImmediateKey {
        self.key
    }

    /// The instances.
    pub fn instances(&self) -> &ImmediateInstances {
        &self.instances
    }
}

impl Drop for Findable {
    fn drop(&mut self) {
        // A thread that ends has let go of them already.
        let _ = FOUND_HERE.try_with(|all| all.borrow_mut()[self.key.index] = None);
    }
}

impl ImmediateKey {
    /// Takes, runs and answers what is asked, if the instances are on this thread and one can take it;
    /// else leaves it there.
    pub fn run(self, asked: &mut Option<Pending>) {
        let instances = FOUND_HERE.with_borrow(|all| match all.get(self.index) {
            Some(Some((serial, instances))) if *serial == self.serial => Some(instances.clone()),
            _ => None,
        });
        if let Some(instances) = instances {
            instances.run(asked);
        }
    }
}
