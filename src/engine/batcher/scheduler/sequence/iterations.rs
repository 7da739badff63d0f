//! Iterative sequences: a request that its model reschedules is executed again, in the same slot.

use std::{sync::Arc, time::Instant};

use super::{Rejected, Sequences, refusals};
use troupe_base::{
    error::Error,
    request::{Correlation, Pending},
};

impl Sequences {
    /// A request without an id begins a sequence of its own, which nobody can add to and which ends
    /// with it. Is it one?
    pub(super) fn begin_own(&mut self, pending: &mut Pending) -> bool {
        let context = &pending.request.context;
        let Some(own_ids) = &mut self.own_ids else { return false };
        if context.correlation != Correlation::None {
            return false;
        }
        pending.request.context = own_ids.begin(context, &self.table, self.controls.wants_text());
        true
    }

    /// Queues a request in flight again: it is the next one of its sequence, and neither the first nor
    /// the last.
    pub(super) fn iterate(
        &mut self,
        mut pending: Pending,
        from: Instant,
    ) -> Result<(), Box<Rejected>> {
        let context = pending.request.context.clone();
        let Some(own_ids) = &mut self.own_ids else {
            let error = Error::invalid(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model \
                 is not configured to handle such a flag.",
            );
            return Err(Box::new(Rejected { pending, error }));
        };
        let place = self.slots.of_in_flight(&pending);
        let place = place.filter(|it| !self.slots.slot(*it).is_lost());
        let Some(place) = place else {
            let error = refusals::lost(&self.model, &context);
            return Err(Box::new(Rejected { pending, error }));
        };
        self.controls.remove(&mut pending.request);
        let again = Arc::new(context.in_sequence(context.correlation.clone(), 0));
        own_ids.go_on(&again);
        pending.request.context = again;
        self.waiting += 1;
        self.slots.push_front(place, pending);
        self.slots.slot_mut(place).last = from;
        Ok(())
    }
}
