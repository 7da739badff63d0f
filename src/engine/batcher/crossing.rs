//! Breaks deadlocks of model calls by failing the youngest call in a wait-for cycle.

use std::time::{Duration, Instant};

use super::{Batcher, Seat};
use troupe_base::{
    error::Error,
    request::deadlock::{BlockedInstance, ModelWaits},
};

/// Calls that have waited less are left alone.
const PATIENCE: Duration = Duration::from_millis(500);

impl Batcher {
    /// Reports who waits here, and fails a call of this model if that is the one to fail.
    pub(super) fn look_for_crossings(&mut self) {
        let blocked = |seat: &Seat| match seat {
            Seat::Outside(worker) => worker.stuck(PATIENCE),
            Seat::Here(_) | Seat::Thread(_) => None,
        };
        let instances: Vec<Option<BlockedInstance>> = self.seats.iter().map(blocked).collect();
        if instances.iter().all(Option::is_none) {
            return self.waits.clear();
        }
        let callers = self.scheduler.queue().iter().filter_map(|it| {
            let caller = it.request.context.call_chain.clone()?;
            Some((caller, it.reply.since()))
        });
        let queued = callers.collect();
        let waits = ModelWaits { observed: Instant::now(), instances, queued };
        let Some((call, text)) = self.waits.report(waits) else { return };
        for seat in &mut self.seats {
            if let Seat::Outside(worker) = seat {
                worker.refuse(&call, &Error::unavailable(text.as_str()));
            }
        }
    }
}
