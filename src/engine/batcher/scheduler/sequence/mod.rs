//! The sequence batcher's scheduler: requests of one sequence run in one slot of one instance, in
//! their order.
//!
//! A sequence that begins takes the free slot with the lowest number, or waits in the backlog. Its id
//! is forgotten with its last request, when that is queued; its slot is free once nothing of it waits
//! or runs.

mod backlog;
mod controls;
mod endings;
mod iterations;
mod lost_ids;
mod own_ids;
mod refusals;
mod rows;
mod slots;
mod stranded;
mod table;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc, time::Instant};

use self::{
    backlog::Backlog,
    controls::Controls,
    lost_ids::LostIds,
    own_ids::OwnIds,
    rows::{RowChoice, RowRule},
    slots::{SequenceSlots, SlotPlace},
    table::{MAX_SEQUENCES, SequenceHome, SequenceTable},
};
use super::{
    decision::{Decision, Rejected, Scheduler},
    queue::{caller, full, is_too_long},
};
use crate::instance::FreeSlots;
use troupe_base::{
    config::{ModelConfig, SequenceBatching},
    error::{Error, Result},
    request::{CallChain, Correlation, Pending, SEQUENCE_END, StateSet},
    statistics::SequenceUsage,
};

/// The sequences of a model.
pub(super) struct Sequences {
    model: Arc<str>,
    rule: RowRule,
    controls: Controls,
    table: SequenceTable,
    slots: SequenceSlots,
    backlog: Backlog,
    /// Sequences that were lost with their instances, which nobody was told yet.
    lost_ids: LostIds,
    /// Of a model that may reschedule requests.
    own_ids: Option<OwnIds>,
    /// Requests that wait in slots or in the backlog.
    waiting: usize,
    /// Found on the way; to be answered.
    rejected: Vec<Rejected>,
    /// The latest moment that it was told of.
    now: Instant,
}

impl Sequences {
    /// For a model with so many instances.
    pub(super) fn new(
        config: &ModelConfig,
        batching: &SequenceBatching,
        instances: usize,
        now: Instant,
    ) -> Result<Sequences> {
        // More than there can be sequences are of no use.
        let rows = (batching.slots(config.max_batch_size) as usize).min(MAX_SEQUENCES);
        Ok(Sequences {
            model: config.name.clone(),
            rule: RowRule::new(config, &batching.strategy),
            controls: Controls::new(config, &batching.controls)?,
            table: SequenceTable::new(batching.max_idle),
            slots: SequenceSlots::new(instances, rows, now),
            backlog: Backlog::default(),
            lost_ids: LostIds::new(batching.max_idle),
            own_ids: batching.is_iterative.then(OwnIds::default),
            waiting: 0,
            rejected: Vec::new(),
            now,
        })
    }

    /// The same for a model whose sequences have states that the server keeps.
    pub(super) fn keeping(mut self, states: Option<Arc<StateSet>>) -> Sequences {
        self.slots.kept = states;
        self
    }

    /// Where a request goes; a sequence that begins gets a slot, or waits for one.
    fn home(&mut self, pending: &Pending, is_own: bool, now: Instant) -> Result<SequenceHome> {
        let context = &pending.request.context;
        refusals::check(&self.model, &pending.request)?;
        self.controls.check(&self.model, context)?;
        let id = &context.correlation;
        let begins = refusals::begins(&pending.request);
        if let Some(home) = self.table.home(id) {
            if begins {
                refusals::warn_of_conflict(&self.model, id);
            }
            return Ok(home);
        }
        if self.lost_ids.take(id, now) && !begins {
            return Err(refusals::lost(&self.model, context));
        }
        if !begins {
            return Err(refusals::not_started(&self.model, id));
        }
        if !is_own && self.own_ids.as_mut().is_some_and(|it| it.is_live(id)) {
            return Err(refusals::in_use(&self.model, id));
        }
        if self.table.is_full() {
            return Err(refusals::too_many(&self.model, MAX_SEQUENCES));
        }
        let home = match self.slots.take(Some(id.clone()), now) {
            Some(place) => SequenceHome::Slot(place),
            None => SequenceHome::Backlog(self.backlog.enter(id.clone())),
        };
        self.table.insert(id.clone(), home, now);
        Ok(home)
    }

    /// Takes the requests of these rows out, to be executed.
    fn begin(&mut self, instance: usize, rows: Vec<Option<usize>>, now: Instant) -> Decision {
        let mut batch: Vec<Option<Pending>> = Vec::with_capacity(rows.len());
        for row in rows {
            batch.push(row.and_then(|row| self.slots.begin(SlotPlace { row, instance })));
        }
        let null_rows = batch.iter().filter(|it| it.is_none()).count();
        self.waiting -= batch.len() - null_rows;
        let mut nulls = VecDeque::new();
        if null_rows != 0
            && let Some(real) = batch.iter().flatten().next()
        {
            nulls = self.controls.null_requests(&real.request, null_rows, now).collect();
        }
        let rows = batch.into_iter().filter_map(|row| match row {
            Some(mut pending) => {
                self.controls.add(&mut pending.request);
                Some(pending)
            }
            None => nulls.pop_front(),
        });
        Decision::Run { batch: rows.collect(), slot: Some(instance), null_rows }
    }

    fn take_rejected(&mut self) -> Vec<Rejected> {
        std::mem::take(&mut self.rejected)
    }
}

impl Scheduler for Sequences {
    fn push(&mut self, mut pending: Pending, from: Instant) -> Result<(), Box<Rejected>> {
        if is_too_long(self.waiting) {
            return Err(full(pending));
        }
        let is_own = self.begin_own(&mut pending);
        let home = match self.home(&pending, is_own, from) {
            Ok(home) => home,
            Err(error) => {
                pending.reply = pending.reply.uncounted();
                return Err(Box::new(Rejected { pending, error }));
            }
        };
        let ends = is_own || pending.request.context.flags & SEQUENCE_END != 0;
        if ends {
            self.table.forget(&pending.request.context.correlation);
        }
        self.waiting += 1;
        match home {
            SequenceHome::Slot(place) => {
                let slot = self.slots.slot_mut(place);
                slot.last = from;
                if ends {
                    slot.id = None;
                }
                self.slots.push_back(place, pending);
                self.move_stranded();
            }
            SequenceHome::Backlog(number) => {
                if ends {
                    self.backlog.forget_id(number);
                }
                self.backlog.push(number, pending, from);
            }
        }
        Ok(())
    }

    fn reschedule(&mut self, pending: Pending, from: Instant) -> Result<(), Box<Rejected>> {
        self.iterate(pending, from)?;
        self.move_stranded();
        Ok(())
    }

    /// Before the others of its sequence.
    fn put_back(&mut self, mut pending: Pending) {
        self.controls.remove(&mut pending.request);
        let Some(place) = self.slots.of_in_flight(&pending) else {
            let error = Error::internal(format!("model '{}' has no such request", self.model));
            return self.rejected.push(Rejected { pending, error });
        };
        if refusals::begins(&pending.request) {
            self.slots.slot_mut(place).begins_anew();
        } else if self.slots.slot(place).is_lost() {
            let error = refusals::lost(&self.model, &pending.request.context);
            return self.rejected.push(Rejected { pending, error });
        }
        self.waiting += 1;
        self.slots.push_front(place, pending);
        self.move_stranded();
    }

    fn next(&mut self, now: Instant, free: &FreeSlots<'_>) -> Decision {
        self.reap(now);
        let mut best = None;
        let mut delay: Option<Instant> = None;
        for instance in 0..self.slots.instances() {
            let of = self.slots.instance(instance);
            if of.is_busy || !of.has_waiting() || !free.contains(instance) {
                continue;
            }
            self.end_cancelled_fronts(instance, now);
            let of = self.slots.instance(instance);
            match self.rule.choose(of, now) {
                RowChoice::Run(rows) => {
                    let oldest = of.fronts().map(|it| it.since).min();
                    if best.as_ref().is_none_or(|(other, _, _)| oldest < *other) {
                        best = Some((oldest, instance, rows));
                    }
                }
                RowChoice::Delay { until } => {
                    delay = Some(delay.map_or(until, |at| at.min(until)));
                }
                RowChoice::Nothing => (),
            }
        }
        if !self.rejected.is_empty() {
            return Decision::Reject(self.take_rejected());
        }
        match (best, delay) {
            (Some((_, instance, rows)), _) => self.begin(instance, rows, now),
            (None, Some(until)) => Decision::Delay { until, reason: "too few sequences are ready" },
            (None, None) => Decision::Idle,
        }
    }

    fn released(&mut self, slot: usize, now: Instant) {
        self.now = now;
        for place in self.slots.ended(slot, now) {
            self.settle(place, now);
        }
        self.move_stranded();
    }

    fn lost(&mut self, slot: usize, now: Instant) -> Vec<Rejected> {
        self.end_lost(slot, now)
    }

    fn set_up(&mut self, slot: usize, is_up: bool) {
        self.slots.set_up(slot, is_up);
        self.move_stranded();
        self.give_all(self.now);
    }

    fn knows(&self, id: &Correlation) -> bool {
        self.table.home(id).is_some() || self.lost_ids.has(id)
    }

    fn sequences(&self) -> SequenceUsage {
        let (slots, taken) = self.slots.count();
        SequenceUsage { slots, taken, backlog: self.backlog.len() }
    }

    fn stopped(&mut self) -> Vec<Rejected> {
        for number in self.backlog.stopped() {
            if let Some(entry) = self.backlog.remove(number) {
                self.cancel(entry);
            }
        }
        for place in self.slots.taken() {
            let mut waiting = self.slots.slot(place).waiting().iter();
            if waiting.any(|it| it.request.context.is_stopped()) {
                self.end_cancelled(place, self.now);
            }
        }
        self.take_rejected()
    }

    fn expire(&mut self, now: Instant) -> Vec<Rejected> {
        self.reap(now);
        self.take_rejected()
    }

    fn next_due(&self) -> Option<Instant> {
        let waiting = self.rejected.first().map(|it| it.pending.reply.since());
        [waiting, self.table.next_look(), self.backlog.next_expiry()].into_iter().flatten().min()
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn callers(&self) -> Vec<(Arc<CallChain>, Instant)> {
        self.slots.waiting().chain(self.backlog.waiting()).filter_map(caller).collect()
    }

    fn len(&self) -> usize {
        self.waiting
    }
}
