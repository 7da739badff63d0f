//! Gathers the work for a slot from the scheduler, and answers what it rejects.

use std::{sync::atomic::Ordering, time::Instant};

use super::{
    actor::Batcher,
    scheduler::{Decision, Rejected},
    shards::Shard,
};
use crate::instance::{FreeSlots, InstanceWork};
use troupe_base::error::ErrorKind;

/// Work for one slot, or why there is none yet.
pub(super) struct Gathered {
    pub(super) slot: usize,
    pub(super) work: InstanceWork,
    /// A batch waits for company until then.
    pub(super) delayed_until: Option<Instant>,
}

impl Batcher {
    /// Batches for one slot: the offered one unless the scheduler names another.
    pub(super) fn gather(&mut self, offered: usize, now: Instant) -> Gathered {
        let mut delayed_until = None;
        let batchers = self.shard.as_ref().map_or(1, Shard::batchers);
        let is_limited = self.rate_claims.is_some();
        let most = match is_limited {
            false => self.pool.handover_size(self.scheduler.len().div_ceil(batchers)),
            // What is granted is granted for one execution.
            true => 1,
        };
        let mut slot = offered;
        let mut batches = Vec::with_capacity(most);
        while batches.len() < most {
            let free = match batches.is_empty() {
                true if is_limited => self.pool.only_free(offered),
                true => self.pool.free_slots(offered),
                false => FreeSlots::only(slot),
            };
            match self.scheduler.next(now, &free) {
                Decision::Run { batch, slot: named, null_rows } => {
                    slot = named.unwrap_or(slot);
                    debug_assert!(free.contains(slot), "a scheduler names free slots only");
                    let asked = (batch.len() - null_rows) as u64;
                    self.stats.pending.fetch_sub(asked, Ordering::Relaxed);
                    match self.charge_null_rows(batch, null_rows) {
                        Some(batch) => batches.push(batch),
                        // Nothing was handed over, so the slot is as free as before.
                        None => self.released(slot),
                    }
                }
                Decision::Reject(rejected) => self.reject(rejected),
                Decision::Delay { until, reason } => {
                    if batches.is_empty() {
                        tracing::trace!(model = %self.config.name, reason, "a batch is delayed");
                        delayed_until = Some(until);
                    }
                    break;
                }
                Decision::Idle => break,
            }
        }
        Gathered { slot, work: InstanceWork(batches), delayed_until }
    }

    /// Rejects what has waited too long, if the scheduler has a time for that; says whether it was
    /// time.
    pub(super) fn expire_due(&mut self) -> bool {
        let Some(due) = self.scheduler.next_due() else { return false };
        let now = Instant::now();
        let is_due = due <= now;
        if is_due {
            let expired = self.scheduler.expire(now);
            self.reject(expired);
        }
        is_due
    }

    pub(super) fn reject(&self, rejected: impl IntoIterator<Item = Rejected>) {
        for Rejected { pending, error } in rejected {
            self.stats.pending.fetch_sub(1, Ordering::Relaxed);
            // Others have been cancelled.
            if error.kind() == ErrorKind::Unavailable {
                self.stats.refused.fetch_add(1, Ordering::Relaxed);
            }
            pending.reply.answer(Err(error));
        }
    }
}
