//! Has a call fail where calls of models wait for each other for ever.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use super::{Batcher, Seat};
use troupe_base::{
    error::Error,
    request::crossing::{Stuck, Waits, crossing, say},
};

/// Calls that have waited less are left alone.
const PATIENCE: Duration = Duration::from_millis(500);

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// What this model has said about its stuck instances; dropping it takes that back.
pub(super) struct Crossing {
    number: usize,
    has_said: bool,
}

impl Default for Crossing {
    fn default() -> Crossing {
        Crossing { number: NEXT.fetch_add(1, Ordering::Relaxed), has_said: false }
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        if self.has_said {
            say(self.number, None);
        }
    }
}

impl Batcher {
    /// Says who waits here, and lets a call of this model fail if that is the one.
    pub(super) fn look_for_crossings(&mut self) {
        let stuck = |seat: &Seat| match seat {
            Seat::Outside(worker) => worker.stuck(PATIENCE),
            Seat::Here(_) | Seat::Thread(_) => None,
        };
        let instances: Vec<Option<Stuck>> = self.seats.iter().map(stuck).collect();
        if instances.iter().all(Option::is_none) {
            if std::mem::take(&mut self.crossing.has_said) {
                say(self.crossing.number, None);
            }
            return;
        }
        let callers = self.scheduler.queue().iter().filter_map(|it| {
            let caller = it.request.context.caller.clone()?;
            Some((caller, it.reply.since()))
        });
        let queued = callers.collect();
        say(self.crossing.number, Some(Waits { observed: Instant::now(), instances, queued }));
        self.crossing.has_said = true;
        let Some((call, text)) = crossing() else { return };
        for seat in &mut self.seats {
            if let Seat::Outside(worker) = seat {
                worker.refuse(&call, &Error::unavailable(text.as_str()));
            }
        }
    }
}
