//! Statistics of models: counts and durations of requests and executions, histograms, quantiles and
//! rates of the last minute.

mod age_tracker;
mod atomics;
mod clock;
mod counters;
mod durations;
mod executed_rows;
mod histogram;
mod in_flight;
mod log_linear;
mod quantiles;
pub mod recent;
mod request_guard;
mod response_cache;
mod responses;
mod sequences;
mod sharded_counters;
pub mod sliding_window;
mod thread_arcs;
mod thread_numbers;
mod timing;
mod totals;

pub use self::{
    age_tracker::{AgeToken, AgeTracker},
    counters::{FailureReason, LatencySummaries, OptionalStatistics, ScalingCounters, Statistics},
    executed_rows::ExecutedRows,
    histogram::{BucketBounds, Histogram, HistogramSnapshot},
    in_flight::{InFlight, OldestInFlight},
    log_linear::LogLinear,
    quantiles::Quantiles,
    recent::RecentStatistics,
    request_guard::RequestGuard,
    response_cache::{CacheStatistics, CacheSummaries},
    responses::{ResponseOutcome, ResponseTotal, Responses},
    sequences::{SequenceStatistics, SequenceUsage},
    sharded_counters::{ShardedCounters, ThreadShard},
    thread_arcs::{ThreadArc, ThreadArcs},
    timing::{Timing, lap_time},
    totals::{BatchTotal, DurationTotal, Totals},
};
