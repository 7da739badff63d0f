//! The counters of one model version: requests, executions and failures, as the statistics
//! extension shows them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    clock::unix_milliseconds, histogram::Histogram, in_flight::InFlight, quantiles::Quantiles,
    recent::RecentStatistics, responses::Responses, timing::Timing,
};
use crate::error::ErrorKind;

/// A count of events and the sum of their durations.
#[derive(Debug, Default)]
pub struct DurationTotal {
    count: AtomicU64,
    ns: AtomicU64,
}

impl DurationTotal {
    fn add(&self, time: Duration) {
        self.add_many(1, time);
    }
    fn add_many(&self, count: u64, time: Duration) {
        self.count.fetch_add(count, Relaxed);
        self.ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }
    /// How many events.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }
    /// The sum of their durations in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.ns.load(Relaxed)
    }
}

/// Executions of one batch size, and the sums of their phases.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct BatchTotal {
    pub count: u64,
    pub compute_input_ns: u64,
    pub compute_infer_ns: u64,
    pub compute_output_ns: u64,
}

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

/// Counters of one version of a model, from its load to its unload.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the statistics extension")]
pub struct Statistics {
    pub success: DurationTotal,
    pub fail: DurationTotal,
    pub queue: DurationTotal,
    pub compute_input: DurationTotal,
    pub compute_infer: DurationTotal,
    pub compute_output: DurationTotal,
    pub inference_count: AtomicU64,
    pub execution_count: AtomicU64,
    /// Milliseconds since the Unix epoch; 0 before the first execution.
    last_inference: AtomicU64,
    /// Requests that are queued for an execution.
    pub pending: AtomicU64,
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
    failures: [AtomicU64; FailureReason::ALL.len()],
    /// Executions by their rows, of fewer than `SMALL_BATCHES`: counted without a lock.
    small_batches: [BatchCounters; SMALL_BATCHES],
    large_batches: Mutex<BTreeMap<u32, BatchTotal>>,
}

const SMALL_BATCHES: usize = 16;

#[derive(Debug, Default)]
struct BatchCounters {
    count: AtomicU64,
    compute_input_ns: AtomicU64,
    compute_infer_ns: AtomicU64,
    compute_output_ns: AtomicU64,
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
        (self.pending.load(Relaxed) as i64).max(0) as u64
    }

    /// Counts a request that was answered after `elapsed`.
    #[inline]
    pub fn success(&self, timing: &Timing, elapsed: Duration) {
        self.success.add(elapsed);
        self.queue.add(timing.queue);
        self.compute_input.add(timing.compute_input);
        self.compute_infer.add(timing.compute_infer);
        self.compute_output.add(timing.compute_output);
        if let Some(summaries) = &self.extra.summaries {
            summaries.observe(timing, elapsed);
        }
    }

    /// Counts a request that failed after `elapsed`.
    pub fn failure(&self, kind: ErrorKind, elapsed: Duration) {
        self.fail.add(elapsed);
        self.failures[FailureReason::of(kind) as usize].fetch_add(1, Relaxed);
    }

    /// Counts an execution of `rows` rows in all that ended at `now`; `timing.queue` is ignored.
    /// One without rows was a warm-up and is not counted.
    #[inline]
    pub fn execution(&self, rows: u32, timing: &Timing, now: Instant) {
        if rows == 0 {
            return;
        }
        self.inference_count.fetch_add(u64::from(rows), Relaxed);
        self.execution_count.fetch_add(1, Relaxed);
        self.last_inference.store(unix_milliseconds(now), Relaxed);
        let took = timing.compute_input + timing.compute_infer + timing.compute_output;
        self.recent.busy_for(took, now);
        let [input, infer, output] =
            [timing.compute_input, timing.compute_infer, timing.compute_output]
                .map(|it| it.as_nanos() as u64);
        if let Some(batch) = self.small_batches.get(rows as usize) {
            batch.count.fetch_add(1, Relaxed);
            batch.compute_input_ns.fetch_add(input, Relaxed);
            batch.compute_infer_ns.fetch_add(infer, Relaxed);
            batch.compute_output_ns.fetch_add(output, Relaxed);
            return;
        }
        let mut batches = self.large_batches.lock();
        let batch = batches.entry(rows).or_default();
        batch.count += 1;
        batch.compute_input_ns += input;
        batch.compute_infer_ns += infer;
        batch.compute_output_ns += output;
    }

    /// Milliseconds since the epoch; 0 before the first execution.
    pub fn last_inference(&self) -> u64 {
        self.last_inference.load(Relaxed)
    }

    /// How many requests failed for `reason`.
    pub fn failures(&self, reason: FailureReason) -> u64 {
        self.failures[reason as usize].load(Relaxed)
    }

    /// Executed batch sizes in ascending order.
    pub fn batches(&self) -> Vec<(u32, BatchTotal)> {
        let small = self.small_batches.iter().enumerate().map(|(rows, it)| {
            let total = BatchTotal {
                count: it.count.load(Relaxed),
                compute_input_ns: it.compute_input_ns.load(Relaxed),
                compute_infer_ns: it.compute_infer_ns.load(Relaxed),
                compute_output_ns: it.compute_output_ns.load(Relaxed),
            };
            (rows as u32, total)
        });
        let large = self.large_batches.lock();
        let large = large.iter().map(|(rows, total)| (*rows, *total));
        small.filter(|(_, total)| total.count != 0).chain(large).collect()
    }
}
