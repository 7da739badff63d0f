//! Rate limits of a batcher: what it executes is granted by the rate limiter first.

use actix::{Context, Handler, Message, WeakAddr};

use super::actor::Batcher;
use crate::{
    instance::SlotStopped,
    rate_limiter::{Claimant, Grant},
};

/// The instance in this slot has the resources that it has claimed.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Granted {
    slot: usize,
    grant: Grant,
}

/// Weak: a claim must not keep alive a model that nobody holds.
impl Claimant for WeakAddr<Batcher> {
    fn granted(&self, slot: usize, grant: Grant) {
        if let Some(batcher) = self.upgrade() {
            batcher.do_send(Granted { slot, grant });
        }
    }
}

impl Batcher {
    /// The slot for the next work; `None` as long as there is none.
    pub(super) fn acquire(&mut self) -> Option<usize> {
        match &mut self.rate_claims {
            None => self.pool.acquire(self.others_rest()),
            Some(claims) => claims.acquire(&self.pool),
        }
    }

    /// The slot is about to execute.
    pub(super) fn begin_limited(&mut self, slot: usize) {
        if let Some(claims) = &mut self.rate_claims {
            claims.begin(slot);
        }
    }

    /// The slot was given its work, or is through with it.
    pub(super) fn end_limited(&mut self, slot: usize, has_ended: bool) {
        if let Some(claims) = &mut self.rate_claims {
            // One that is down begins nothing, for whoever knows how long, and one that was scaled
            // away nothing at all.
            let begins_more = self.pool.is_up(slot) && self.pool.is_open(slot);
            if !begins_more || has_ended && self.scheduler.len() == 0 {
                claims.end(slot);
            } else if has_ended {
                claims.renew(slot, &self.pool);
            }
        }
    }

    /// Nothing that waits can run in that slot now; says whether another one may have to be tried.
    pub(super) fn decline(&mut self, slot: usize) -> bool {
        let Some(claims) = &mut self.rate_claims else { return false };
        claims.decline(slot);
        true
    }

    /// The slot is not given any more work.
    pub(super) fn forget_claim(&mut self, slot: usize) {
        if let Some(claims) = &mut self.rate_claims {
            claims.forget(slot, &self.pool);
        }
    }

    /// Something has changed: slots that had nothing to do may have.
    pub(super) fn look_again(&mut self) {
        if let Some(claims) = &mut self.rate_claims {
            claims.look_again();
        }
    }

    /// Claims nothing while nothing waits.
    pub(super) fn withdraw_claims(&mut self) {
        if let Some(claims) = &mut self.rate_claims
            && self.scheduler.len() == 0
        {
            claims.withdraw(&self.pool);
        }
    }
}

impl Handler<SlotStopped> for Batcher {
    type Result = ();

    fn handle(&mut self, SlotStopped(slot): SlotStopped, _: &mut Context<Self>) {
        if let Some(claims) = &mut self.rate_claims {
            claims.end(slot);
        }
    }
}

impl Handler<Granted> for Batcher {
    type Result = ();

    fn handle(&mut self, Granted { slot, grant }: Granted, ctx: &mut Context<Self>) {
        if let Some(claims) = &mut self.rate_claims {
            claims.granted(slot, grant, &self.pool);
        }
        self.dispatch(ctx);
    }
}
