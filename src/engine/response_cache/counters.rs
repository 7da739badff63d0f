//! What the response cache of a server has done since its start.

use std::time::Duration;

use troupe_base::{
    metrics::{CacheUsage, HeldAnswers},
    statistics::ShardedCounters,
};

const HITS: usize = 0;
const MISSES: usize = 1;
const LOOKUP_NS: usize = 2;
const INSERTION_NS: usize = 3;
const COUNTERS: usize = 4;

/// Counters of all models together.
pub(super) struct CacheCounters(ShardedCounters);

impl CacheCounters {
    pub(super) fn new() -> CacheCounters {
        CacheCounters(ShardedCounters::new(COUNTERS))
    }

    /// A request was answered without an execution; to look it up took `lookup`.
    pub(super) fn hit(&self, lookup: Duration) {
        self.add(HITS, lookup);
    }

    /// A request is to be executed; to look it up took `lookup`.
    pub(super) fn miss(&self, lookup: Duration) {
        self.add(MISSES, lookup);
    }

    /// To keep an answer took so long.
    pub(super) fn inserted(&self, took: Duration) {
        self.0.this_thread().add(INSERTION_NS, took.as_nanos() as u64);
    }

    pub(super) fn usage(&self, held: Option<HeldAnswers>) -> CacheUsage {
        let all = self.0.totals();
        CacheUsage {
            hits: all[HITS],
            misses: all[MISSES],
            lookup: Duration::from_nanos(all[LOOKUP_NS]),
            insertion: Duration::from_nanos(all[INSERTION_NS]),
            held,
        }
    }

    fn add(&self, place: usize, lookup: Duration) {
        let mine = self.0.this_thread();
        mine.add(place, 1);
        mine.add(LOOKUP_NS, lookup.as_nanos() as u64);
    }
}
