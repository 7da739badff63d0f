//! The table of live sequences: from a correlation id to the slot or the backlog entry, and who has
//! been idle for too long.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use super::slots::SlotPlace;
use troupe_base::request::Correlation;

/// More sequences of one model at a time, in slots and in the backlog, are refused.
pub(super) const MAX_SEQUENCES: usize = 1 << 17;

/// Where the requests of a sequence go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceHome {
    Slot(SlotPlace),
    /// The entry of this number.
    Backlog(u64),
}

/// Sequences whose ids are known.
pub(super) struct SequenceTable {
    max_idle: Duration,
    sequences: HashMap<Correlation, Sequence>,
    /// When to look whether one has been idle for too long; one place for each.
    looks: BTreeMap<(Instant, u64), Correlation>,
    next: u64,
}

struct Sequence {
    home: SequenceHome,
    /// Its key in `looks`; `None` if that would be after the end of time.
    look: Option<(Instant, u64)>,
}

impl SequenceTable {
    pub(super) fn new(max_idle: Duration) -> SequenceTable {
        let (sequences, looks) = Default::default();
        SequenceTable { max_idle, sequences, looks, next: 0 }
    }

    pub(super) fn home(&self, id: &Correlation) -> Option<SequenceHome> {
        self.sequences.get(id).map(|it| it.home)
    }

    pub(super) fn is_full(&self) -> bool {
        MAX_SEQUENCES <= self.sequences.len()
    }

    /// A sequence begins.
    pub(super) fn insert(&mut self, id: Correlation, home: SequenceHome, now: Instant) {
        let number = self.next;
        self.next += 1;
        let look = now.checked_add(self.max_idle).map(|at| (at, number));
        if let Some(look) = look {
            self.looks.insert(look, id.clone());
        }
        self.sequences.insert(id, Sequence { home, look });
    }

    /// The sequence has left the backlog.
    pub(super) fn moved(&mut self, id: &Correlation, home: SequenceHome) {
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.home = home;
        }
    }

    /// The id means nothing any more.
    pub(super) fn forget(&mut self, id: &Correlation) {
        if let Some(look) = self.sequences.remove(id).and_then(|it| it.look) {
            self.looks.remove(&look);
        }
    }

    /// When to call `looked_for` next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.looks.first_key_value().map(|((at, _), _)| *at)
    }

    /// A sequence to look at now. It is to be forgotten, or looked at again later.
    pub(super) fn due(&self, now: Instant) -> Option<(Correlation, SequenceHome)> {
        let ((at, _), id) = self.looks.first_key_value()?;
        if now < *at {
            return None;
        }
        Some((id.clone(), self.sequences.get(id)?.home))
    }

    /// A sequence was active at this moment: it may be idle from then on. Answers whether it has
    /// been so for too long already.
    pub(super) fn look_later(&mut self, id: &Correlation, active: Instant, now: Instant) -> bool {
        let Some(sequence) = self.sequences.get_mut(id) else { return false };
        let next = active.checked_add(self.max_idle);
        if next.is_some_and(|at| at <= now) {
            return true;
        }
        if let Some(last) = sequence.look.take() {
            self.looks.remove(&last);
        }
        let number = self.next;
        self.next += 1;
        sequence.look = next.map(|at| (at, number));
        if let Some(look) = sequence.look {
            self.looks.insert(look, id.clone());
        }
        false
    }
}
