//! How sequences end other than by their last request: cancelled, idle, expired, lost with an instance.

use std::{collections::VecDeque, time::Instant};

use super::{
    super::decision::Rejected, Sequences, backlog::BacklogEntry, refusals, slots::SlotPlace,
    table::SequenceHome,
};
use troupe_base::{error::Error, request::Pending};

impl Sequences {
    /// Gives a slot that its sequence has left to the one that has waited longest.
    pub(super) fn settle(&mut self, place: SlotPlace, now: Instant) {
        if !self.slots.slot(place).is_through() {
            return;
        }
        match self.slots.is_offered(place.instance) && self.slots.stranded().is_none() {
            true => self.give(place, now),
            false => {
                self.slots.release(place);
                self.move_stranded();
            }
        }
    }

    /// Gives slots to those that wait for one: more of them are offered now.
    pub(super) fn give_all(&mut self, now: Instant) {
        while self.backlog.len() != 0
            && let Some(place) = self.slots.take_free()
        {
            self.give(place, now);
        }
    }

    /// Gives a slot that nobody has to the sequence that has waited longest, if one waits.
    fn give(&mut self, place: SlotPlace, now: Instant) {
        while let Some((_, entry)) = self.backlog.pop() {
            if entry.has_stopped() {
                self.cancel(entry);
                continue;
            }
            if let Some(id) = &entry.id {
                self.table.moved(id, SequenceHome::Slot(place));
            }
            self.slots.occupy(place, entry.id, entry.waiting, now);
            return;
        }
        self.slots.release(place);
    }

    /// A sequence of the backlog is given up with all its requests.
    pub(super) fn cancel(&mut self, entry: BacklogEntry) {
        if let Some(id) = &entry.id {
            self.table.forget(id);
        }
        self.reject_stopped(entry.waiting);
    }

    /// Those whose sequence has lost one of its requests.
    fn reject_stopped(&mut self, waiting: VecDeque<Pending>) {
        self.waiting -= waiting.len();
        self.rejected.extend(waiting.into_iter().map(|pending| {
            let error = pending.request.context.stopped().unwrap_or_else(Error::cancelled);
            Rejected { pending, error }
        }));
    }

    /// The id of the sequence in this slot means nothing any more.
    pub(super) fn forget(&mut self, place: SlotPlace) {
        if let Some(id) = self.slots.slot_mut(place).id.take() {
            self.table.forget(&id);
        }
    }

    /// A request of the sequence in this slot was cancelled: nothing more of it runs.
    pub(super) fn end_cancelled(&mut self, place: SlotPlace, now: Instant) {
        let waiting = self.slots.drain(place);
        self.reject_stopped(waiting);
        self.forget(place);
        self.settle(place, now);
    }

    /// Forgets sequences that have been idle for too long, and gives up those that have waited too
    /// long for a slot.
    pub(super) fn reap(&mut self, now: Instant) {
        self.now = now;
        while let Some((id, home)) = self.table.due(now) {
            let SequenceHome::Slot(place) = home else {
                self.table.look_later(&id, now, now);
                continue;
            };
            let slot = self.slots.slot(place);
            let active = if slot.is_active() { now } else { slot.last };
            if self.table.look_later(&id, active, now) {
                tracing::debug!(model = %self.model, ?id, "a sequence was idle for too long");
                self.forget(place);
                self.settle(place, now);
            }
        }
        while let Some(number) = self.backlog.expired(now) {
            let Some(entry) = self.backlog.remove(number) else { return };
            if let Some(id) = &entry.id {
                self.table.forget(id);
            }
            self.waiting -= entry.waiting.len();
            let reject = |pending| Rejected { pending, error: refusals::expired() };
            self.rejected.extend(entry.waiting.into_iter().map(reject));
        }
    }

    /// Ends the sequences of an instance whose next request was cancelled.
    pub(super) fn end_cancelled_fronts(&mut self, instance: usize, now: Instant) {
        let fronts = self.slots.instance(instance).fronts();
        let stopped = fronts.filter(|it| it.pending.request.context.is_stopped());
        let stopped: Vec<usize> = stopped.map(|it| it.row).collect();
        for row in stopped {
            self.end_cancelled(SlotPlace { row, instance }, now);
        }
    }

    /// The instance in this slot has forgotten its sequences: takes out the requests that need it.
    /// Where none is there to be told of it, the next one of the sequence is.
    pub(super) fn end_lost(&mut self, slot: usize, now: Instant) -> Vec<Rejected> {
        if self.slots.kept.is_some() {
            return Vec::new();
        }
        let (mut lost, mut sequences) = (Vec::new(), 0);
        for place in self.slots.taken().into_iter().filter(|it| it.instance == slot) {
            if !self.slots.slot(place).has_begun() {
                continue;
            }
            sequences += 1;
            let gone = self.slots.drain_until(place, |it| refusals::begins(&it.request));
            self.waiting -= gone.len();
            let is_told = !gone.is_empty();
            lost.extend(gone.into_iter().map(|pending| {
                let error = refusals::lost(&self.model, &pending.request.context);
                Rejected { pending, error }
            }));
            self.slots.slot_mut(place).lose();
            if self.slots.slot(place).front().is_none() {
                if let Some(id) = self.slots.slot(place).id.clone().filter(|_| !is_told) {
                    self.lost_ids.insert(id, now);
                }
                self.forget(place);
                self.settle(place, now);
            }
        }
        if sequences != 0 {
            tracing::warn!(
                "an instance of '{}' has ended with {sequences} sequences, which are lost: the next \
                 request of each is told",
                self.model
            );
        }
        lost
    }
}
