//! Gauges of a model's sequences: its slots, how many of them are taken, who waits for one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Gauges of one model with sequences; only its batcher writes them.
#[derive(Debug, Default)]
pub struct SequenceStatistics {
    slots: AtomicU64,
    taken: AtomicU64,
    backlog: AtomicU64,
}

/// Sequences at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceUsage {
    /// Slots of all instances.
    pub slots: usize,
    /// Those that sequences have.
    pub taken: usize,
    /// Sequences without a slot, which wait for one.
    pub backlog: usize,
}

impl SequenceStatistics {
    /// It is so now.
    pub fn show(&self, usage: SequenceUsage) {
        let SequenceUsage { slots, taken, backlog } = usage;
        for (gauge, value) in [(&self.slots, slots), (&self.taken, taken), (&self.backlog, backlog)]
        {
            gauge.store(value as u64, Relaxed);
        }
    }

    /// As it was shown last.
    pub fn usage(&self) -> SequenceUsage {
        let read = |gauge: &AtomicU64| gauge.load(Relaxed) as usize;
        SequenceUsage {
            slots: read(&self.slots),
            taken: read(&self.taken),
            backlog: read(&self.backlog),
        }
    }
}

impl SequenceUsage {
    /// Sequences that have something to go on with.
    pub fn sequences(self) -> usize {
        self.taken + self.backlog
    }
}
