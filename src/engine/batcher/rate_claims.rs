//! Claims of a batcher at the rate limiter: an instance that needs resources executes only while it
//! holds them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    instance::InstancePool,
    rate_limiter::{Claimant, Grant},
};
use troupe_base::request::deadlock::InstanceWait;

/// What the slots of a batcher have claimed.
pub(super) struct RateClaims {
    /// Slots beyond the last one have claimed nothing.
    slots: Vec<SlotClaim>,
    /// The batcher, as the rate limiter reaches it.
    claimant: Arc<dyn Claimant>,
}

#[derive(Default)]
enum SlotClaim {
    #[default]
    None,
    /// It was claimed then, and is not granted yet.
    Waiting(Instant),
    /// The next execution may begin.
    Granted(Grant),
    /// Kept until the execution is through.
    Executing { grant: Option<Grant> },
    /// Nothing that waits can run in this slot: it claims nothing until something changes.
    Declined,
}

impl RateClaims {
    /// Nothing is claimed yet.
    pub(super) fn new(claimant: Arc<dyn Claimant>) -> RateClaims {
        RateClaims { slots: Vec::new(), claimant }
    }

    /// A slot that may execute at once; where there is none, all that rest have claimed what they
    /// need.
    pub(super) fn acquire(&mut self, pool: &InstancePool) -> Option<usize> {
        for slot in pool.resting() {
            let claimant = self.claimant.clone();
            let claim = self.slot(slot);
            match claim {
                SlotClaim::Granted(_) => return Some(slot),
                SlotClaim::Waiting(_) | SlotClaim::Declined => continue,
                SlotClaim::None | SlotClaim::Executing { .. } => (),
            }
            let Some(seat) = pool.seat(slot) else { return Some(slot) };
            match seat.claim(slot, &claimant) {
                Some(grant) => {
                    *claim = SlotClaim::Granted(grant);
                    return Some(slot);
                }
                None => *claim = SlotClaim::Waiting(Instant::now()),
            }
        }
        None
    }

    /// What a slot has claimed is there; what it does not wait for any more is given back.
    pub(super) fn granted(&mut self, slot: usize, grant: Grant, pool: &InstancePool) {
        let is_its_own = pool.seat(slot).is_some_and(|seat| seat.owns(&grant));
        let claim = self.slot(slot);
        if is_its_own && matches!(claim, SlotClaim::Waiting(_)) {
            *claim = SlotClaim::Granted(grant);
        }
    }

    /// The slot is about to execute.
    pub(super) fn begin(&mut self, slot: usize) {
        let claim = self.slot(slot);
        let grant = match std::mem::take(claim) {
            SlotClaim::Granted(mut grant) => {
                grant.execute();
                Some(grant)
            }
            _ => None,
        };
        *claim = SlotClaim::Executing { grant };
    }

    /// The slot is through, or it could not begin: gives back what it held.
    pub(super) fn end(&mut self, slot: usize) {
        if matches!(self.slot(slot), SlotClaim::Executing { .. }) {
            *self.slot(slot) = SlotClaim::None;
        }
    }

    /// The slot is through, and more waits: it claims what the next execution needs as it gives back
    /// what it held, so that both are weighed together.
    pub(super) fn renew(&mut self, slot: usize, pool: &InstancePool) {
        let claimant = self.claimant.clone();
        let claim = self.slot(slot);
        let SlotClaim::Executing { grant } = claim else { return };
        let last = grant.take();
        *claim = SlotClaim::None;
        if let (Some(seat), Some(last)) = (pool.seat(slot), last) {
            let next = seat.claim_again(slot, &claimant, last);
            let waiting = || SlotClaim::Waiting(Instant::now());
            *claim = next.map_or_else(waiting, SlotClaim::Granted);
        }
    }

    /// Nothing that waits can run in that slot now.
    pub(super) fn decline(&mut self, slot: usize) {
        *self.slot(slot) = SlotClaim::Declined;
    }

    /// What was declined may be of use again.
    pub(super) fn look_again(&mut self) {
        let declined = self.slots.iter_mut().filter(|it| matches!(it, SlotClaim::Declined));
        declined.for_each(|claim| *claim = SlotClaim::None);
    }

    /// Nothing waits for the instances: gives back what they have not begun to use.
    pub(super) fn withdraw(&mut self, pool: &InstancePool) {
        for slot in 0..self.slots.len() {
            self.forget(slot, pool);
        }
    }

    /// Gives back what a slot has not begun to use.
    pub(super) fn forget(&mut self, slot: usize, pool: &InstancePool) {
        let claim = self.slot(slot);
        match claim {
            SlotClaim::Waiting(_) => {
                *claim = SlotClaim::None;
                if let Some(seat) = pool.seat(slot) {
                    seat.withdraw();
                }
            }
            SlotClaim::Granted(_) => *claim = SlotClaim::None,
            SlotClaim::None | SlotClaim::Executing { .. } | SlotClaim::Declined => (),
        }
    }

    /// What keeps a slot from its next execution, if it has been waiting for so long.
    pub(super) fn wait(
        &self,
        slot: usize,
        pool: &InstancePool,
        min_wait: Duration,
    ) -> Option<InstanceWait> {
        let SlotClaim::Waiting(since) = *self.slots.get(slot)? else { return None };
        if since.elapsed() < min_wait {
            return None;
        }
        let holders = pool.seat(slot)?.holders()?;
        Some(InstanceWait::Resource { since, holders })
    }

    fn slot(&mut self, slot: usize) -> &mut SlotClaim {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, SlotClaim::default);
        }
        &mut self.slots[slot]
    }
}
