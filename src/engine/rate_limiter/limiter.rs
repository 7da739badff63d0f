//! The rate limiter of a server: batchers claim resources for an instance, and are told when it has
//! them.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::{
    claims::{Claims, InstanceId},
    resources::{ResourceDemand, ResourceLimit},
};
use troupe_base::{error::Result, request::deadlock::SeatId};

/// Whoever claims resources: a batcher. Called on any thread; must not block.
pub trait Claimant: Send + Sync {
    /// The instance in this slot has its resources now; whoever drops the grant gives them back.
    fn granted(&self, slot: usize, grant: Grant);
}

/// Shares the resources of one server.
pub struct RateLimiter {
    state: Mutex<LimiterState>,
}

struct LimiterState {
    claims: Claims,
    /// Who waits, and for which of its slots.
    claimants: Vec<(InstanceId, Arc<dyn Claimant>, usize)>,
}

/// An instance that needs resources for each execution; known until it is dropped.
pub struct Seat {
    limiter: Arc<RateLimiter>,
    instance: InstanceId,
}

/// The resources of one execution; given back when it is dropped.
pub struct Grant {
    limiter: Arc<RateLimiter>,
    instance: InstanceId,
    has_executed: bool,
    /// It was given back already.
    is_spent: bool,
}

impl RateLimiter {
    /// There is as much of each resource as this says; if it says nothing, as much as one instance
    /// needs.
    pub fn new(limits: Vec<ResourceLimit>) -> Arc<RateLimiter> {
        let state = LimiterState { claims: Claims::new(limits), claimants: Vec::new() };
        Arc::new(RateLimiter { state: Mutex::new(state) })
    }

    /// Instances come, all or none: a model that could never execute is not loaded.
    pub fn join(self: &Arc<Self>, demands: &[ResourceDemand]) -> Result<Vec<Arc<Seat>>> {
        let mut ids = Ok(Vec::new());
        // With them there may be more of something: then others are granted it.
        self.change(None, |state| ids = state.claims.add(demands));
        let ids = ids?;
        let seat = |instance| Arc::new(Seat { limiter: self.clone(), instance });
        Ok(ids.into_iter().map(seat).collect())
    }

    /// Changes the claims, then tells those who are granted something. `asks` is not told: it gets
    /// its grant as the result.
    fn change(
        self: &Arc<Self>,
        asks: Option<InstanceId>,
        change: impl FnOnce(&mut LimiterState),
    ) -> Option<Grant> {
        let (mut own, mut told) = (None, Vec::new());
        // Dropped without the lock.
        let mut unclaimed = Vec::new();
        {
            let mut state = self.state.lock();
            change(&mut state);
            for instance in state.claims.grant(Instant::now()) {
                let limiter = self.clone();
                let grant = Grant { limiter, instance, has_executed: false, is_spent: false };
                let place = state.claimants.iter().position(|it| it.0 == instance);
                let claimant = place.map(|it| state.claimants.swap_remove(it));
                match claimant {
                    _ if asks == Some(instance) => own = Some(grant),
                    Some((_, claimant, slot)) => told.push((claimant, slot, grant)),
                    None => unclaimed.push(grant),
                }
            }
        }
        drop(unclaimed);
        for (claimant, slot, grant) in told {
            claimant.granted(slot, grant);
        }
        own
    }
}

impl Seat {
    /// Waits for the resources of an execution in this slot: the grant, if they are there at once;
    /// else the claimant is told.
    pub fn claim(&self, slot: usize, claimant: &Arc<dyn Claimant>) -> Option<Grant> {
        self.limiter.change(Some(self.instance), |state| self.note(state, slot, claimant))
    }

    /// Gives back what the last execution in this slot had, and waits for the next one's: among all
    /// others, for whom it is no sooner there.
    pub fn claim_again(
        &self,
        slot: usize,
        claimant: &Arc<dyn Claimant>,
        mut last: Grant,
    ) -> Option<Grant> {
        last.is_spent = true;
        self.limiter.change(Some(self.instance), |state| {
            state.claims.release(last.instance, last.has_executed);
            self.note(state, slot, claimant);
        })
    }

    fn note(&self, state: &mut LimiterState, slot: usize, claimant: &Arc<dyn Claimant>) {
        state.claims.claim(self.instance);
        state.claimants.retain(|it| it.0 != self.instance);
        state.claimants.push((self.instance, claimant.clone(), slot));
    }

    /// Its number, as `holders` names it.
    pub fn id(&self) -> SeatId {
        self.instance
    }

    /// Who holds a resource that it claims and lacks, or for which it is kept back; `None` if nobody
    /// lacks anything.
    pub fn holders(&self) -> Option<Vec<SeatId>> {
        self.limiter.state.lock().claims.holders(self.instance)
    }

    /// Is this what it has claimed?
    pub fn owns(&self, grant: &Grant) -> bool {
        self.instance == grant.instance
    }

    /// Does not wait any more. A grant may be on its way.
    pub fn withdraw(&self) {
        // What was kept for it is for others now.
        self.limiter.change(None, |state| {
            state.claims.withdraw(self.instance);
            state.claimants.retain(|it| it.0 != self.instance);
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.limiter.change(None, |state| {
            state.claims.remove(self.instance);
            state.claimants.retain(|it| it.0 != self.instance);
        });
    }
}

impl Grant {
    /// What runs with it counts when it is given back.
    pub fn execute(&mut self) {
        self.has_executed = true;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.is_spent {
            return;
        }
        let (instance, has_executed) = (self.instance, self.has_executed);
        let release = |state: &mut LimiterState| state.claims.release(instance, has_executed);
        self.limiter.change(None, release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::config::{RateLimits, RateResource};

    #[derive(Default)]
    struct Told(Mutex<Vec<(usize, Grant)>>);

    impl Claimant for Told {
        fn granted(&self, slot: usize, grant: Grant) {
            self.0.lock().push((slot, grant));
        }
    }

    fn demand(count: u32) -> ResourceDemand {
        let resources = vec![RateResource { name: "R".into(), count, global: false }];
        ResourceDemand::new(&RateLimits { resources, priority: 0 }, 0).unwrap()
    }

    #[test]
    fn what_is_given_back_goes_to_whoever_waits_and_who_has_gone_waits_no_more() {
        let limiter = RateLimiter::new(Vec::new());
        let seats = limiter.join(&[demand(1), demand(1), demand(1)]).unwrap();
        let told = Arc::new(Told::default());
        let claimant: Arc<dyn Claimant> = told.clone();
        let claim = |slot: usize| seats[slot].claim(slot, &claimant);
        let slots = || told.0.lock().iter().map(|it| it.0).collect::<Vec<_>>();
        let mut first = claim(0).expect("nobody else has it");
        first.execute();
        assert!(claim(1).is_none() && claim(2).is_none() && slots().is_empty());
        drop(first);
        assert_eq!(slots(), [1]);
        // A grant that nobody takes comes back, too.
        let taken = std::mem::take(&mut *told.0.lock());
        drop(taken);
        assert_eq!(slots(), [2]);
        assert!(claim(0).is_none());
        seats[0].withdraw();
        let taken = std::mem::take(&mut *told.0.lock());
        drop(taken);
        assert!(slots().is_empty());
        assert!(claim(1).is_some());
    }
    #[test]
    fn what_comes_may_bring_more_and_who_waits_is_granted_it() {
        let limiter = RateLimiter::new(Vec::new());
        let seats = limiter.join(&[demand(1), demand(1)]).unwrap();
        let told = Arc::new(Told::default());
        let claimant: Arc<dyn Claimant> = told.clone();
        let first = seats[0].claim(0, &claimant);
        assert!(first.is_some() && seats[1].claim(1, &claimant).is_none());
        // There is as much as one instance needs at most.
        let _big = limiter.join(&[demand(2)]).unwrap();
        assert_eq!(told.0.lock().iter().map(|it| it.0).collect::<Vec<_>>(), [1]);
        told.0.lock().clear();
    }
}
