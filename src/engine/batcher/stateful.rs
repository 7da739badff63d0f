//! What a batcher of sequences does beside scheduling: it finds instances that have forgotten them, and
//! forwards what the model before a reload has begun.

use std::{
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::Instant,
};

use actix::{Handler, Message};

use super::{actor::Batcher, scheduler::Scheduler};
use troupe_base::{
    model::Model,
    request::{Correlation, Pending, SEQUENCE_START},
};

/// So many models at most that were replaced by a reload go on with their sequences, one behind the
/// other; those before them end, and their sequences with them.
const MAX_PREDECESSORS: usize = 8;

/// The model replaces this one, which has sequences to go on with.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Succeed(pub(super) Arc<Model>);

/// The model was replaced, and its successors too: so many in all.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Succeeded {
    pub(super) age: usize,
}

impl Batcher {
    /// What was handed to this slot is through, or was put back.
    pub(super) fn released(&mut self, slot: usize) {
        if self.stateful.is_some() {
            self.scheduler.released(slot, Instant::now());
        }
    }

    /// Tells a stateful scheduler which instances are others now: their sequences are lost.
    pub(super) fn find_losses(&mut self) {
        let Some(stateful) = &mut self.stateful else { return };
        let mut lost = Vec::new();
        let known = stateful.generations.iter_mut().zip(self.pool.generations());
        for (slot, (known, now)) in known.enumerate() {
            if now.has_forgotten(known) {
                lost.extend(self.scheduler.lost(slot, Instant::now()));
            }
            if now.is_up != known.is_up {
                self.scheduler.set_up(slot, now.is_up);
            }
            *known = now;
        }
        self.reject(lost);
    }

    /// Hands a request of a sequence that the model before a reload has begun to that model; gives
    /// back any other.
    pub(super) fn forward(&mut self, pending: Pending) -> Option<Pending> {
        let is_ours = |scheduler: &dyn Scheduler| {
            let context = &pending.request.context;
            let has_none = context.correlation == Correlation::None;
            let begins = context.flags & SEQUENCE_START != 0;
            has_none || begins || scheduler.knows(&context.correlation)
        };
        let predecessor = self.stateful.as_ref().and_then(|it| it.predecessor.as_ref());
        let Some(predecessor) = predecessor.filter(|_| !is_ours(&*self.scheduler)) else {
            return Some(pending);
        };
        self.stats.pending.fetch_sub(1, Ordering::Relaxed);
        predecessor.go_on(pending.request, pending.reply);
        None
    }

    /// Says how many sequences there are.
    pub(super) fn count_sequences(&self) {
        if let Some(stateful) = &self.stateful {
            let usage = self.scheduler.sequences();
            stateful.sequences.live.store(usage.sequences(), Ordering::Relaxed);
            if let Some(shown) = &self.stats.extra.sequences {
                shown.show(usage);
            }
        }
    }

    /// Lets go of the model before a reload once all of its sequences have ended and nobody else has
    /// it: whoever has may be about to begin one there.
    pub(super) fn forget_predecessor(&mut self) {
        let Some(stateful) = &mut self.stateful else { return };
        let Some(predecessor) = &stateful.predecessor else { return };
        let is_held = Arc::strong_count(predecessor) != 1;
        // Whoever let go of it did so after its sequence was counted.
        fence(Ordering::Acquire);
        let left = predecessor.sequences();
        stateful.sequences.predecessors.store(left, Ordering::Relaxed);
        if left == 0 && !is_held {
            stateful.predecessor = None;
            tracing::info!(
                "all sequences of '{}' that began before its reload have ended",
                self.config.name
            );
        }
    }
}

impl Handler<Succeed> for Batcher {
    type Result = ();

    fn handle(&mut self, Succeed(predecessor): Succeed, _: &mut Self::Context) {
        let Some(stateful) = &mut self.stateful else { return };
        predecessor.succeeded(1);
        match &stateful.predecessor {
            // One that another version had: the one before goes on for it.
            Some(first) => first.succeed(&predecessor),
            None => stateful.predecessor = Some(predecessor),
        }
    }
}

impl Handler<Succeeded> for Batcher {
    type Result = ();

    fn handle(&mut self, Succeeded { age }: Succeeded, _: &mut Self::Context) {
        let Some(stateful) = &mut self.stateful else { return };
        match &stateful.predecessor {
            Some(predecessor) if age < MAX_PREDECESSORS => predecessor.succeeded(age + 1),
            // Its sequences end with it: nobody waits for them any more.
            _ => {
                stateful.predecessor = None;
                stateful.sequences.predecessors.store(0, Ordering::Relaxed);
            }
        }
    }
}
