//! The backlog: sequences that wait for a slot, first come, first served, each with its requests.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use troupe_base::request::{Correlation, Pending};

/// Sequences without a slot.
#[derive(Default)]
pub(super) struct Backlog {
    /// By the number in which they came.
    entries: BTreeMap<u64, BacklogEntry>,
    /// When the time of an entry is over.
    expiries: BTreeSet<(Instant, u64)>,
    next: u64,
}

/// A sequence that waits for a slot.
pub(super) struct BacklogEntry {
    /// `None` once its last request has come.
    pub(super) id: Option<Correlation>,
    pub(super) waiting: VecDeque<Pending>,
    /// When one of its requests will have waited as long as it may.
    expires: Option<Instant>,
}

impl Backlog {
    /// How many sequences wait.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A sequence waits; answers its number.
    pub(super) fn enter(&mut self, id: Correlation) -> u64 {
        let number = self.next;
        self.next += 1;
        let entry = BacklogEntry { id: Some(id), waiting: VecDeque::new(), expires: None };
        self.entries.insert(number, entry);
        number
    }

    /// Queues a request, which may wait for its `timeout`.
    pub(super) fn push(&mut self, number: u64, pending: Pending, from: Instant) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let timeout = Duration::from_micros(pending.request.context.timeout_us);
        entry.waiting.push_back(pending);
        let due = from.checked_add(timeout).filter(|_| !timeout.is_zero());
        if let Some(due) = due
            && entry.expires.is_none_or(|at| due < at)
        {
            let last = entry.expires.replace(due);
            last.map(|at| self.expiries.remove(&(at, number)));
            self.expiries.insert((due, number));
        }
    }

    /// Its last request has come.
    pub(super) fn forget_id(&mut self, number: u64) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.id = None;
        }
    }

    /// The sequence that has waited longest.
    pub(super) fn pop(&mut self) -> Option<(u64, BacklogEntry)> {
        let number = *self.entries.first_key_value()?.0;
        Some((number, self.remove(number)?))
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<BacklogEntry> {
        let entry = self.entries.remove(&number)?;
        if let Some(at) = entry.expires {
            self.expiries.remove(&(at, number));
        }
        Some(entry)
    }

    /// A sequence whose time is over.
    pub(super) fn expired(&self, now: Instant) -> Option<u64> {
        self.expiries.first().filter(|(at, _)| *at <= now).map(|(_, number)| *number)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Sequences of which a request has stopped.
    pub(super) fn stopped(&self) -> Vec<u64> {
        let has_stopped = |it: &BacklogEntry| it.has_stopped();
        self.entries.iter().filter(|(_, it)| has_stopped(it)).map(|(number, _)| *number).collect()
    }

    /// All that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Pending> {
        self.entries.values().flat_map(|it| &it.waiting)
    }
}

impl BacklogEntry {
    /// Is there a request that nobody waits for any more?
    pub(super) fn has_stopped(&self) -> bool {
        self.waiting.iter().any(|it| it.request.context.is_stopped())
    }
}
