//! The trait of schedulers, and what one decides: run a batch, delay it, or reject requests.

use std::{sync::Arc, time::Instant};

use crate::instance::FreeSlots;
use troupe_base::{
    error::Error,
    request::{CallChain, Correlation, Pending},
    statistics::SequenceUsage,
};

/// Keeps the requests that wait for a model, and decides what runs next.
///
/// Pure: time comes in as an argument, and nothing is answered here.
pub(in crate::batcher) trait Scheduler: Send {
    /// Queues a request that waits from then on; an error says why it may not wait.
    fn push(&mut self, pending: Pending, from: Instant) -> Result<(), Box<Rejected>>;

    /// Queues a request that was handed over but not begun among those of its age.
    fn put_back(&mut self, pending: Pending);

    /// Queues a request that its model wants to execute once more, from then on.
    fn reschedule(&mut self, pending: Pending, from: Instant) -> Result<(), Box<Rejected>> {
        self.push(pending, from)
    }

    /// What was handed to this slot is through, or was put back. Only told where a scheduler is
    /// stateful.
    fn released(&mut self, slot: usize, now: Instant) {
        let _ = (slot, now);
    }

    /// The instance in this slot has forgotten what it was told by earlier requests: it is another
    /// one now. Takes out the requests that need it. Only told where a scheduler is stateful.
    fn lost(&mut self, slot: usize, now: Instant) -> Vec<Rejected> {
        let _ = (slot, now);
        Vec::new()
    }

    /// The instance in this slot stays down, or is up again: sequences that begin go elsewhere, as
    /// long as another one is up. Only told where a scheduler is stateful.
    fn set_up(&mut self, slot: usize, is_up: bool) {
        let _ = (slot, is_up);
    }

    /// Is this the id of a sequence that goes on here, or whose loss is to be told here?
    fn knows(&self, id: &Correlation) -> bool {
        let _ = id;
        false
    }

    /// How many sequences there are, and slots for them.
    fn sequences(&self) -> SequenceUsage {
        SequenceUsage::default()
    }

    /// What to do now that one of these slots can be given a batch. Called again until it has
    /// nothing more to run.
    fn next(&mut self, now: Instant, free: &FreeSlots<'_>) -> Decision;

    /// Takes out all requests that have stopped, wherever they wait: nobody may ever get to those
    /// behind the front.
    fn stopped(&mut self) -> Vec<Rejected>;

    /// Takes out all requests that have waited too long.
    fn expire(&mut self, now: Instant) -> Vec<Rejected>;

    /// When `expire` has something to take out, even if nothing arrives and no slot is released;
    /// looked at only where `is_timed`.
    fn next_due(&self) -> Option<Instant>;

    /// Is there anything that happens at a certain time?
    fn is_timed(&self) -> bool;

    /// The models that wait in a call for a request of the queue, and since when.
    fn callers(&self) -> Vec<(Arc<CallChain>, Instant)>;

    /// How many requests wait.
    fn len(&self) -> usize;
}

/// What to do now.
pub(in crate::batcher) enum Decision {
    /// Run these requests as one execution.
    Run {
        batch: Vec<Pending>,
        /// One of the free slots; `None` if any will do.
        slot: Option<usize>,
        /// How many of them nobody asked: rows of a batch in which a sequence has nothing to do.
        null_rows: usize,
    },
    /// Nothing yet: ask again then.
    Delay { until: Instant, reason: &'static str },
    /// Answer these requests, then ask again.
    Reject(Vec<Rejected>),
    /// Nothing waits that these slots could run.
    Idle,
}

impl Decision {
    /// Run these requests, wherever there is room.
    pub(in crate::batcher) fn run(batch: Vec<Pending>) -> Decision {
        Decision::Run { batch, slot: None, null_rows: 0 }
    }
}

/// A request that does not run, and why.
pub(in crate::batcher) struct Rejected {
    pub(in crate::batcher) pending: Pending,
    pub(in crate::batcher) error: Error,
}
