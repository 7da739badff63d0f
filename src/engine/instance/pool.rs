//! The pool of a model's instances: chooses one for the next work, and takes it back when released.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Addr;

use super::{
    actor::{InstanceActor, InstanceHandle},
    engine::Capacity,
    immediate::ImmediateInstances,
    open::{InstanceOpener, OpenedModel},
    placement::{FreeSlots, PlacementPolicy, SlotSize},
    slot::{OfferedSlot, SlotOwner, SlotReleased},
    state::{Handover, InstanceGeneration},
    state_feed::StateFeed,
    work::InstanceWork,
};
use crate::rate_limiter::Seat;
use troupe_base::{
    error::{Error, Result},
    request::{CallChain, deadlock::BlockedInstance},
};

/// Work handed to an instance at once should take about this long: long enough to spread the cost
/// of handing over, short enough that other instances and late arrivals are not kept waiting.
const TARGET_HANDOVER: Duration = Duration::from_micros(500);
/// A worker whose executions are shorter than this is given more before it is through: while it
/// runs, its last answers are on their way and the next requests come in.
const MAX_QUEUED_EXECUTION: Duration = Duration::from_micros(100);
/// Requests that wait are worth handing to another thread if they would take longer than this:
/// about twice what threads take to wake each other.
const MIN_SHARED_WORK: Duration = Duration::from_micros(100);
/// Never more executions than this at once.
const MAX_EXECUTIONS_PER_HANDOVER: u128 = 64;

/// All instances of a model, each in a slot.
pub struct InstancePool {
    instances: Vec<InstanceHandle>,
    placement: PlacementPolicy,
    /// Moving average of one execution, from its handover on; of a worker process that is the only
    /// instance by its own clock, which leaves out what it waited for a core.
    cost: Duration,
    /// Work is handed to other processes, which begin it by and by.
    has_queue: bool,
    /// The instances do other things while an execution waits: its time says little.
    is_concurrent: bool,
    /// Since all were idle, an instance was given work that it may not have begun.
    is_ahead: bool,
    /// Work may wait in front of an instance that executes.
    queues: bool,
    /// Other pools have instances of the model, too.
    is_shared: bool,
    /// Nothing moves to another instance.
    is_stateful: bool,
    /// Of a model that keeps something for its sequences.
    states: Option<StateFeed>,
}

/// What a pool's instances are used for.
#[derive(Clone, Copy, Debug)]
pub struct PoolUse {
    /// Work may wait in front of an instance that executes. Not for batches: they get better by
    /// waiting.
    pub queues: bool,
    /// Other pools have instances of the model, too.
    pub is_shared: bool,
    /// What an instance was told by earlier requests matters to later ones: it executes one batch
    /// after the other, and nothing moves to another instance.
    pub is_stateful: bool,
}

impl InstancePool {
    /// Attaches opened models to the current thread, in the order of their slots.
    pub fn attach(
        opened: Vec<(InstanceOpener, OpenedModel)>,
        PoolUse { queues, is_shared, is_stateful }: PoolUse,
        states: Option<StateFeed>,
    ) -> Result<InstancePool> {
        let attach =
            |(opener, opened): (InstanceOpener, OpenedModel)| InstanceActor::attach(opener, opened);
        let instances: Vec<InstanceHandle> =
            opened.into_iter().map(attach).collect::<Result<_>>()?;
        let capacities: Vec<Capacity> = instances.iter().map(InstanceHandle::capacity).collect();
        let sizes = capacities.iter().map(|it| slot_size(it, queues, is_stateful));
        Ok(InstancePool {
            placement: PlacementPolicy::new(sizes),
            queues,
            has_queue: capacities.iter().any(|capacity| capacity.has_queue),
            is_concurrent: capacities.iter().any(|capacity| capacity.concurrency.is_some()),
            // A first guess; one execution at a time until it is known better.
            cost: TARGET_HANDOVER,
            is_ahead: false,
            is_shared,
            is_stateful,
            states,
            instances,
        })
    }

    /// Adds an instance, in the place of one that has gone if there is one; it is given no work before
    /// its slot is opened.
    pub fn add(
        &mut self,
        opener: InstanceOpener,
        opened: OpenedModel,
    ) -> Result<(usize, Addr<InstanceActor>)> {
        let instance = InstanceActor::attach(opener, opened)?;
        let address = instance.address().clone();
        if let Some(slot) = self.instances.iter().position(InstanceHandle::is_retired) {
            self.instances[slot] = instance;
            return Ok((slot, address));
        }
        let size = slot_size(&instance.capacity(), self.queues, self.is_stateful);
        self.instances.push(instance);
        Ok((self.placement.add(size), address))
    }

    /// The slot is given work from now on.
    pub fn open(&mut self, slot: usize) {
        self.placement.open(slot);
    }

    /// The slot is given no more work; false if it was given none before.
    pub fn close(&mut self, slot: usize) -> bool {
        self.placement.close(slot)
    }

    /// Is the slot given work?
    pub fn is_open(&self, slot: usize) -> bool {
        self.placement.is_open(slot)
    }

    /// Lets go of the instance in a closed slot, unless it has something in work.
    pub fn retire(&mut self, slot: usize) -> bool {
        self.instances[slot].let_go();
        let is_through = self.placement.is_resting(slot) || !self.is_up(slot);
        is_through && self.instances[slot].retire()
    }

    /// Which one of all that it had each slot has now: another one knows nothing of earlier
    /// requests.
    pub fn generations(&self) -> impl Iterator<Item = InstanceGeneration> {
        self.instances.iter().map(InstanceHandle::generation)
    }

    /// The instances' mailboxes, in the order of their slots.
    pub fn addresses(&self) -> Vec<Addr<InstanceActor>> {
        self.instances.iter().map(|instance| instance.address().clone()).collect()
    }

    /// Are there requests that each instance executes before a call of it returns?
    pub fn may_run_now(&self) -> bool {
        self.instances.iter().all(InstanceHandle::may_run_now)
    }

    /// Can answers overtake each other?
    pub fn is_parallel(&self) -> bool {
        1 < self.instances.len() || self.is_concurrent
    }

    /// Has the model a say in whether it is ready?
    pub fn has_check(&self) -> bool {
        let has = |instance: &InstanceHandle| instance.with_worker(|worker| worker.has_check());
        self.instances.iter().any(|instance| has(instance).unwrap_or(false))
    }

    /// Can any slot be given work?
    pub fn has_room(&self) -> bool {
        self.placement.room() != 0
    }

    /// How many executions could begin at once.
    pub fn idle(&self) -> usize {
        self.placement.idle()
    }

    /// Has an instance work?
    pub fn is_busy(&self) -> bool {
        self.placement.is_busy()
    }

    /// May an instance have been given work that it has not begun?
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// The slot for the next work; `None` as long as there is none.
    ///
    /// `others_rest`: another pool could begin the work at once, so none waits in front of an
    /// instance of this one.
    pub fn acquire(&self, others_rest: bool) -> Option<usize> {
        let is_worth_it = !others_rest && self.cost < MAX_QUEUED_EXECUTION;
        self.placement.choose(|slot| is_worth_it && self.gets_on(slot))
    }

    /// Would so many executions, one after the other, take longer than handing some of them to
    /// another thread?
    pub fn is_worth_sharing(&self, executions: usize) -> bool {
        MIN_SHARED_WORK < self.cost.saturating_mul(executions.try_into().unwrap_or(u32::MAX))
    }

    /// The slots that work can be given to while `offered` is acquired.
    pub fn free_slots(&self, offered: usize) -> FreeSlots<'_> {
        FreeSlots::any(offered, &self.placement)
    }

    /// The same where only `offered` may have it.
    pub fn only_free(&self, offered: usize) -> FreeSlots<'_> {
        FreeSlots::alone(offered, &self.placement)
    }

    /// The slots without any work, in the order in which they should be given some.
    pub fn resting(&self) -> Vec<usize> {
        self.placement.resting()
    }

    /// What the instance in a slot needs to execute; `None`: nothing that is limited.
    pub fn seat(&self, slot: usize) -> Option<Arc<Seat>> {
        self.instances.get(slot)?.instance().borrow().opener.seat.clone()
    }

    /// Has the instance in a slot an engine?
    pub fn is_up(&self, slot: usize) -> bool {
        self.instances.get(slot).is_some_and(|it| it.instance().borrow().is_up())
    }

    /// How many executions the next slot is to be given at once, if so many requests wait.
    pub fn handover_size(&self, waiting: usize) -> usize {
        // Concurrent executions are each through by themselves.
        if self.is_concurrent {
            return 1;
        }
        // Nothing is shared between an instance and the place in front of it.
        let takers = if self.is_only() { 1 } else { self.placement.room() };
        share(waiting, takers, self.cost)
    }

    /// True unless another instance of the model, in whichever pool, could take the work while this
    /// one blocks in a call of a model or is behind.
    fn gets_on(&self, slot: usize) -> bool {
        let is_held_up = || {
            self.instances[slot].with_worker(|worker| worker.calls_others() || worker.is_behind())
        };
        self.is_only() || !is_held_up().unwrap_or(false)
    }

    /// Is there no other instance that could take what this one does not get to?
    fn is_only(&self) -> bool {
        self.instances.len() == 1 && !self.is_shared
    }

    /// Does an instance, of this pool or another one, rest while others of this one, in processes,
    /// have work that they may not have begun?
    pub fn may_rebalance(&self, others_rest: bool) -> bool {
        let is_uneven = || self.placement.is_uneven() || others_rest && self.placement.is_busy();
        self.has_queue && !self.is_concurrent && !self.is_stateful && is_uneven()
    }

    /// Takes back what instances that are busy for long have not begun: it is queued anew. Says
    /// whether to try again.
    pub fn give_back(&self) -> bool {
        let give_back = |instance: &InstanceHandle| {
            instance.with_worker(|worker| worker.give_back()).unwrap_or(false)
        };
        // All of them are asked.
        self.instances.iter().filter(|it| give_back(it)).count() != 0
    }

    /// Hands work to a slot that has room. `owner` is told when the slot has room again, if it
    /// has not at once. Says how many executions have ended already.
    pub fn start(
        &mut self,
        slot: usize,
        work: InstanceWork,
        begun: Instant,
        owner: &Arc<dyn SlotOwner>,
    ) -> u32 {
        let work = match &self.states {
            Some(states) => states.feed(work),
            None => work,
        };
        let executions = work.executions();
        let is_one = executions == 1 && self.placement.is_idle(slot);
        self.is_ahead |= self.has_queue && !self.is_concurrent && !is_one;
        self.placement.begin(slot);
        match self.instances[slot].start(work, OfferedSlot { owner, index: slot, begun }) {
            Handover::Finished(took) => {
                self.ended(slot, took);
                executions
            }
            Handover::Later => 0,
        }
    }

    /// The instances, to be called past the slots with what ends before the call does.
    pub fn immediate(&self) -> ImmediateInstances {
        let open = self.instances.iter().enumerate().filter(|it| self.placement.is_open(it.0));
        ImmediateInstances(open.map(|(_, instance)| instance.instance().clone()).collect())
    }

    /// A slot has room again.
    pub fn release(&mut self, released: SlotReleased) {
        let SlotReleased { slot, took, executed, returned } = released;
        if let Some(returned) = returned {
            self.instances[slot].take_back(returned);
        }
        // Others begin what this one does not get to: then it counts when it is through.
        let took = if self.is_only() { executed.or(took) } else { took };
        self.ended(slot, took);
    }

    fn ended(&mut self, slot: usize, took: Option<Duration>) {
        if let Some(took) = took
            && !self.is_concurrent
        {
            self.cost = (self.cost * 7 + took) / 8;
        }
        self.placement.end(slot);
        self.is_ahead &= self.placement.is_busy();
    }

    /// For each slot the call that its instance has been blocked in for so long.
    pub fn blocked(&self, min_wait: Duration) -> Vec<Option<BlockedInstance>> {
        let blocked = |instance: &InstanceHandle| {
            instance.with_worker(|worker| worker.blocked_call(min_wait)).flatten()
        };
        self.instances.iter().map(blocked).collect()
    }

    /// Answers a call that an instance is blocked in with an error.
    pub fn fail_call(&self, call: &Arc<CallChain>, error: &Error) {
        for instance in &self.instances {
            instance.with_worker(|worker| worker.fail_call(call, error));
        }
    }
}

/// How much a slot is given at once.
fn slot_size(capacity: &Capacity, queues: bool, is_stateful: bool) -> SlotSize {
    SlotSize {
        capacity: capacity.concurrency.map_or(1, |it| if is_stateful { 1 } else { it.get() }),
        queue: (queues && capacity.has_queue && capacity.concurrency.is_none()).into(),
    }
}

/// How many of the executions that wait one of the `takers` gets, if one takes `cost`: an equal share,
/// and not too much at once.
fn share(waiting: usize, takers: usize, cost: Duration) -> usize {
    let most = TARGET_HANDOVER.as_nanos() / cost.as_nanos().max(1);
    let most = most.clamp(1, MAX_EXECUTIONS_PER_HANDOVER) as usize;
    waiting.div_ceil(takers.max(1)).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executions that wait, those who can take some, and microseconds that one takes: what the
    /// next one gets.
    fn check(waiting: usize, takers: usize, cost: u64, expected: usize) {
        let got = share(waiting, takers, Duration::from_micros(cost));
        assert_eq!(got, expected, "{waiting} / {takers}, {cost} µs each");
    }

    #[test]
    fn what_waits_is_shared() {
        check(1, 1, 10, 1);
        check(8, 1, 10, 8);
        check(8, 4, 10, 2);
        check(9, 4, 10, 3);
        check(2, 4, 10, 1);
        check(0, 1, 10, 1);
        check(5, 0, 10, 5);
    }

    #[test]
    fn a_handover_has_an_end() {
        check(1000, 1, 10, 50);
        check(1000, 1, 0, 64);
        check(8, 1, 300, 1);
        check(8, 1, 1_500_000, 1);
    }
}
