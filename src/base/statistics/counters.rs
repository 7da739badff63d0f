//! The counters of one model version: requests, executions and failures, as the statistics
//! extension shows them.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    clock::unix_milliseconds,
    executed_rows::ExecutedRows,
    histogram::Histogram,
    in_flight::InFlight,
    quantiles::Quantiles,
    recent::RecentStatistics,
    response_cache::CacheStatistics,
    responses::Responses,
    sequences::SequenceStatistics,
    sharded_counters::live,
    timing::Timing,
    totals::{DurationTotal, Totals, WorkCounters},
};
use crate::error::ErrorKind;

/// Why a request failed: the label `reason` of `nv_inference_request_failure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum FailureReason {
    Rejected,
    Canceled,
    Backend,
    /// Ours, beside Triton's four: the worker ended with the request in it.
    Crashed,
    Other,
}

impl FailureReason {
    /// All reasons; every one has a series from load on.
    pub const ALL: [FailureReason; 5] = [
        FailureReason::Rejected,
        FailureReason::Canceled,
        FailureReason::Backend,
        FailureReason::Crashed,
        FailureReason::Other,
    ];
    /// The label's value.
    pub fn label(self) -> &'static str {
        match self {
            FailureReason::Rejected => "REJECTED",
            FailureReason::Canceled => "CANCELED",
            FailureReason::Backend => "BACKEND",
            FailureReason::Crashed => "CRASHED",
            FailureReason::Other => "OTHER",
        }
    }
    fn of(kind: ErrorKind) -> FailureReason {
        match kind {
            ErrorKind::Cancelled | ErrorKind::DeadlineExceeded => FailureReason::Canceled,
            ErrorKind::Unavailable | ErrorKind::ResourceExhausted | ErrorKind::TooLarge => {
                FailureReason::Rejected
            }
            ErrorKind::Internal | ErrorKind::Unknown => FailureReason::Backend,
            ErrorKind::Crashed => FailureReason::Crashed,
            _ => FailureReason::Other,
        }
    }
}

/// What is counted only where the configuration asks for it.
#[derive(Debug, Default)]
pub struct OptionalStatistics {
    /// Time from each request to its first response, in whole milliseconds.
    pub first_response: Option<Histogram>,
    /// Quantiles of the durations of successful requests.
    pub summaries: Option<Box<LatencySummaries>>,
    /// Responses of decoupled models, by their position.
    pub responses: Option<Responses>,
    /// Hits and misses of models whose answers are kept.
    pub cache: Option<Box<CacheStatistics>>,
    /// Slots of models with sequences.
    pub sequences: Option<Box<SequenceStatistics>>,
}

/// Quantiles of durations in microseconds, over the last minute.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the statistics extension")]
pub struct LatencySummaries {
    pub request: Quantiles,
    pub queue: Quantiles,
    pub compute_input: Quantiles,
    pub compute_infer: Quantiles,
    pub compute_output: Quantiles,
}

impl LatencySummaries {
    fn observe(&self, timing: &Timing, elapsed: Duration) {
        let now = Instant::now();
        for (quantiles, time) in [
            (&self.request, elapsed),
            (&self.queue, timing.queue),
            (&self.compute_input, timing.compute_input),
            (&self.compute_infer, timing.compute_infer),
            (&self.compute_output, timing.compute_output),
        ] {
            quantiles.observe(time.as_micros() as u64, now);
        }
    }
}

/// How often the number of a model's instances has changed without another load.
#[derive(Debug, Default)]
pub struct ScalingCounters {
    /// There were more afterwards.
    pub up: AtomicU64,
    /// There were fewer afterwards.
    pub down: AtomicU64,
}

/// Counters of one version of a model, from its load to its unload.
#[derive(Debug, Default)]
pub struct Statistics {
    work: WorkCounters,
    /// Milliseconds since the Unix epoch; 0 before the first execution.
    last_inference: AtomicU64,
    /// Requests that are queued for an execution.
    pub pending: AtomicU64,
    /// Requests that the queue refused: it was full, or they had waited too long.
    pub refused: AtomicU64,
    /// Requests in flight: not answered yet.
    pub in_flight: InFlight,
    /// Duration of the load in nanoseconds.
    load: AtomicU64,
    /// What is counted only where the configuration asks for it.
    pub extra: OptionalStatistics,
    /// The same over the last minute.
    pub recent: RecentStatistics,
    /// Responses without an output that was asked for.
    pub missing_outputs: AtomicU64,
    /// Responses with rows that no row of the request asked for.
    pub unexpected_rows: AtomicU64,
    /// Changes of the number of its instances while it serves.
    pub scalings: ScalingCounters,
    /// Requests that failed, by reason.
    failures: [AtomicU64; FailureReason::ALL.len()],
    /// The nanoseconds that all of them took.
    failed_ns: AtomicU64,
}

impl Statistics {
    /// Statistics that also count what is in `extra`.
    pub fn new(extra: OptionalStatistics) -> Statistics {
        Statistics { extra, ..Statistics::default() }
    }

    /// Sets the duration of the load.
    pub fn loaded(&self, took: Duration) {
        self.load.store(took.as_nanos() as u64, Relaxed);
    }

    /// The duration of the load; zero before its end.
    pub fn load(&self) -> Duration {
        Duration::from_nanos(self.load.load(Relaxed))
    }

    /// Requests that are queued for an execution. After a batcher of several has panicked, with
    /// requests of others in flight, the counter may be below zero: that is none.
    pub fn pending(&self) -> u64 {
        live(self.pending.load(Relaxed))
    }

    /// Counts a request that was answered after `elapsed`.
    #[inline]
    pub fn success(&self, timing: &Timing, elapsed: Duration) {
        self.work.success(timing, elapsed);
        if let Some(summaries) = &self.extra.summaries {
            summaries.observe(timing, elapsed);
        }
    }

    /// Counts a request that failed after `elapsed`.
    pub fn failure(&self, kind: ErrorKind, elapsed: Duration) {
        self.failed_ns.fetch_add(elapsed.as_nanos() as u64, Relaxed);
        self.failures[FailureReason::of(kind) as usize].fetch_add(1, Relaxed);
    }

    /// Counts an execution of so many rows that ended at `now`; `timing.queue` is ignored.
    /// One without rows was a warm-up and is not counted.
    #[inline]
    pub fn execution(&self, rows: impl Into<ExecutedRows>, timing: &Timing, now: Instant) {
        let rows = rows.into();
        if rows.all == 0 {
            return;
        }
        self.work.execution(rows, timing);
        let milliseconds = unix_milliseconds(now);
        // Written a thousand times a second at most: other threads read the line it is in.
        if self.last_inference.load(Relaxed) != milliseconds {
            self.last_inference.store(milliseconds, Relaxed);
        }
        let took = timing.compute_input + timing.compute_infer + timing.compute_output;
        self.recent.busy_for(took, now);
    }

    /// Milliseconds since the epoch; 0 before the first execution.
    pub fn last_inference(&self) -> u64 {
        self.last_inference.load(Relaxed)
    }

    /// How many requests failed for `reason`.
    pub fn failures(&self, reason: FailureReason) -> u64 {
        self.failures[reason as usize].load(Relaxed)
    }

    /// Requests that failed.
    pub fn fail(&self) -> DurationTotal {
        let count = self.failures.iter().map(|it| it.load(Relaxed)).sum();
        DurationTotal { count, ns: self.failed_ns.load(Relaxed) }
    }

    /// What was done since the load: to be asked for once by whoever wants several of its numbers.
    pub fn totals(&self) -> Totals {
        let mut totals = self.work.totals();
        if let Some(cache) = &self.extra.cache {
            totals.without_execution(cache.hits().count);
        }
        totals
    }
}
