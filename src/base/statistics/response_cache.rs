//! Counters of a model's response cache: hits, misses, requests answered by the execution of an equal
//! one.

use std::time::{Duration, Instant};

use super::{quantiles::Quantiles, sharded_counters::ShardedCounters, totals::DurationTotal};

const HITS: usize = 0;
const HIT_NS: usize = 1;
const MISSES: usize = 2;
const MISS_NS: usize = 3;
const COALESCED: usize = 4;
const WAITED_NS: usize = 5;
const COUNTERS: usize = 6;

/// Counters of one model whose answers are kept.
#[derive(Debug)]
pub struct CacheStatistics {
    counters: ShardedCounters,
    /// Quantiles of their durations in microseconds, over the last minute; only where they are
    /// shown.
    pub summaries: Option<Box<CacheSummaries>>,
}

/// Quantiles of lookups that found something, and of those that did not, with what it took to keep
/// the answer.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CacheSummaries {
    pub hit: Quantiles,
    pub miss: Quantiles,
}

impl CacheStatistics {
    /// Counters at zero.
    pub fn new(has_summaries: bool) -> CacheStatistics {
        let summaries = has_summaries.then(Box::default);
        CacheStatistics { counters: ShardedCounters::new(COUNTERS), summaries }
    }

    /// A request was answered out of the cache; the lookup took `took`.
    pub fn hit(&self, took: Duration) {
        let mine = self.counters.this_thread();
        mine.add(HITS, 1);
        mine.add(HIT_NS, took.as_nanos() as u64);
        if let Some(summaries) = &self.summaries {
            summaries.hit.observe(took.as_micros() as u64, Instant::now());
        }
    }

    /// A request was executed; to look its answer up, and to keep it, took `took`.
    pub fn miss(&self, took: Duration) {
        let mine = self.counters.this_thread();
        mine.add(MISSES, 1);
        mine.add(MISS_NS, took.as_nanos() as u64);
        if let Some(summaries) = &self.summaries {
            summaries.miss.observe(took.as_micros() as u64, Instant::now());
        }
    }

    /// A request was answered with what an equal one was answered that was executed at that time.
    /// It is a hit besides: nothing was executed for it.
    pub fn coalesced(&self) {
        self.counters.this_thread().add(COALESCED, 1);
    }

    /// A hit was answered so long after it had come in: what its model counts as time in the queue,
    /// though it was in none.
    pub fn hit_waited(&self, waited: Duration) {
        self.counters.this_thread().add(WAITED_NS, waited.as_nanos() as u64);
    }

    /// What all hits together have waited until they were answered.
    pub fn hits_waited(&self) -> Duration {
        Duration::from_nanos(self.counters.totals()[WAITED_NS])
    }

    /// Requests that were answered without an execution, and the time of their lookups.
    pub fn hits(&self) -> DurationTotal {
        let all = self.counters.totals();
        DurationTotal { count: all[HITS], ns: all[HIT_NS] }
    }

    /// Requests that were executed, and the time it took to look them up and to keep the answers.
    pub fn misses(&self) -> DurationTotal {
        let all = self.counters.totals();
        DurationTotal { count: all[MISSES], ns: all[MISS_NS] }
    }

    /// Hits as a share of hits and misses; 0 without any.
    pub fn hit_rate(&self) -> f64 {
        let all = self.counters.totals();
        all[HITS] as f64 / (all[HITS] + all[MISSES]).max(1) as f64
    }

    /// Hits that were answered by the execution of an equal request.
    pub fn coalesced_count(&self) -> u64 {
        self.counters.totals()[COALESCED]
    }
}
