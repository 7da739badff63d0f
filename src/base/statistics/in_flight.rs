//! Counts the requests in flight by the time of their last progress, for the watchdog of stuck
//! requests.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use parking_lot::Mutex;

use super::sharded_counters::{ShardedCounters, live};

/// Generations of requests that are told apart.
const GENERATIONS: usize = 8;

/// How many requests are in flight, by the generation in which each of them last made progress:
/// arrived, or gave a response that is not its last.
///
/// The watchdog begins a new generation with `turn`. A request costs two additions.
#[derive(Debug)]
pub struct InFlight {
    /// By generation.
    counts: ShardedCounters,
    current: AtomicUsize,
    /// When each generation began; `None` if that was before the first turn.
    begins: Mutex<[Option<Instant>; GENERATIONS]>,
}

/// The requests in flight at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OldestInFlight {
    /// The oldest of them has made no progress since then, or for longer.
    pub since: Instant,
    /// How many are in flight.
    pub count: u64,
}

impl Default for InFlight {
    fn default() -> InFlight {
        let counts = ShardedCounters::new(GENERATIONS);
        InFlight { counts, current: AtomicUsize::default(), begins: Mutex::default() }
    }
}

impl InFlight {
    /// Counts one more request; returns its generation.
    pub(super) fn enter(&self) -> usize {
        let generation = self.current.load(Relaxed);
        self.counts.this_thread().add(generation, 1);
        generation
    }

    /// Counts a request of this generation no longer.
    pub(super) fn leave(&self, generation: usize) {
        self.counts.this_thread().subtract(generation, 1);
    }

    /// Moves a request from its generation to the current one, which is returned.
    pub(super) fn renew(&self, generation: usize) -> usize {
        if generation == self.current.load(Relaxed) {
            return generation;
        }
        let current = self.enter();
        self.leave(generation);
        current
    }

    /// How many requests are in flight.
    pub fn count(&self) -> u64 {
        self.counts.totals().into_iter().map(live).sum()
    }

    /// Begins a new generation and describes the older ones; `None` if nothing is in flight.
    pub fn turn(&self, now: Instant) -> Option<OldestInFlight> {
        let mut begins = self.begins.lock();
        let counts = self.counts.totals();
        let is_used = |generation: &usize| live(counts[*generation]) != 0;
        let used = (0..GENERATIONS).filter(is_used);
        let since = used.map(|generation| *begins[generation].get_or_insert(now)).min();
        // Without a free generation new requests look older than they are: the others are stuck
        // anyway.
        if let Some(free) = (0..GENERATIONS).find(|generation| !is_used(generation)) {
            begins[free] = Some(now);
            self.current.store(free, Relaxed);
        }
        since.map(|since| OldestInFlight { since, count: self.count() })
    }
}
