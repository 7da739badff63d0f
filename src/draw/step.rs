//! A step as it is right now: its numbers and its health.

use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;

use super::scheduling;
use troupe_base::{
    metrics::activity::StepActivity,
    model::Model,
    statistics::{
        BatchTotal, CacheStatistics, FailureReason, SequenceUsage, Statistics,
        recent::{HistoryPoint, MinuteSummary, RecentStatistics},
        sliding_window::SLOTS,
    },
};

/// More batch sizes than this are not listed, but those executed most often.
const MAX_BATCH_SIZES: usize = 32;

/// One step of an ensemble, or the model itself.
#[derive(Clone, Debug, Serialize)]
pub struct StepView {
    /// `step:INDEX`.
    pub id: String,
    /// Its position in the config.
    pub step: usize,
    /// The model's name.
    pub model: String,
    /// The version that runs.
    pub version: String,
    /// It runs other models in turn: it has a graph of its own.
    pub ensemble: bool,
    /// It can take work.
    pub ready: bool,
    /// How it is.
    pub health: StepHealth,
    /// What its config says of scheduling, in a few words each: queues, sequences, resources, answers
    /// that are kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scheduling: Vec<String>,
    /// Instances there are; 0 for an ensemble.
    pub instances: usize,
    /// Instances that are up.
    pub instances_ready: usize,
    /// What it did.
    #[serde(flatten)]
    pub numbers: WorkNumbers,
    /// The last minute, in spans of `SLOT_DURATION`, from old to new.
    #[serde(skip)]
    pub history: [HistoryPoint; SLOTS],
}

/// How a step is, the worst that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepHealth {
    /// It cannot take work.
    Unavailable,
    /// Requests failed in the last minute.
    Failing,
    /// Its instances are always at work, and requests wait; or all slots are taken, and sequences do.
    Saturated,
    /// Requests were answered in the last minute.
    Working,
    /// There were none.
    Idle,
}

/// Counts since the load, gauges of this moment, and durations of the last minute.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkNumbers {
    /// Half of the requests took no longer.
    pub p50_us: Option<f64>,
    /// 99 of 100 requests took no longer.
    pub p99_us: Option<f64>,
    /// Over the last ten seconds or a little more.
    pub requests_per_second: f64,
    /// The share of the same time that its instances worked; `None` without instances.
    pub utilization: Option<f64>,
    /// Requests that wait for an execution of the model, whoever asked.
    pub queue_depth: u64,
    /// Requests that wait at the step since `max_inflight_requests` are in flight.
    pub window_waiting: u64,
    /// Requests handed to the model and not answered.
    pub in_flight: u64,
    /// Answered, good or not.
    pub requests: u64,
    /// Failures; cancelled requests are none.
    pub errors: u64,
    /// Requests whose client has gone, or that another step failed.
    pub cancelled: u64,
    /// Failures in the last minute.
    pub recent_errors: u64,
    /// Executions of the model by rows, whoever asked; ascending.
    pub batch_sizes: Vec<BatchSize>,
    /// What the response cache did for the model, whoever asked; `None` where its answers are not
    /// kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheNumbers>,
    /// The model's sequences, whoever sends them; `None` where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<SequenceNumbers>,
    /// How the last request failed.
    pub last_error: Option<LastFailure>,
}

/// Requests since the load that the response cache was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CacheNumbers {
    /// Hits as a share of hits and misses; 0 without any.
    pub hit_rate: f64,
    /// Answered without an execution.
    pub hits: u64,
    /// Executed.
    pub misses: u64,
    /// Of the hits, those that were answered by the execution of an equal request.
    pub coalesced: u64,
}

/// Sequences at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SequenceNumbers {
    /// Slots of all instances.
    pub slots: usize,
    /// Those that sequences have.
    pub taken: usize,
    /// Sequences that wait for a slot.
    pub backlog: usize,
}

/// Executions of so many rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct BatchSize {
    pub size: u32,
    pub count: u64,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LastFailure {
    /// What the client was told of it, cut if it is very long.
    pub text: String,
    /// Milliseconds since the epoch.
    pub time: u64,
    /// So long before now.
    pub seconds_ago: u64,
}

impl StepView {
    pub(super) fn of(
        index: usize,
        model: &Model,
        live: Option<&StepActivity>,
        now: Instant,
    ) -> StepView {
        let of_model = WorkNumbers::of_model(model, now);
        let (numbers, recent) = match live {
            Some(live) => (of_step(live, of_model, now), &live.recent),
            None => (of_model, &model.stats.recent),
        };
        let (instances_ready, instances) = model.health.instances();
        let minute = recent.minute(now);
        StepView {
            id: format!("step:{index}"),
            step: index,
            model: model.name().to_string(),
            version: model.version.to_string(),
            ensemble: model.config.is_ensemble(),
            ready: model.is_ready(),
            health: StepHealth::of(model.is_ready(), &numbers, &minute),
            scheduling: scheduling::facts(&model.config),
            instances,
            instances_ready,
            numbers,
            history: recent.history(now),
        }
    }
}

impl StepHealth {
    fn of(is_ready: bool, numbers: &WorkNumbers, minute: &MinuteSummary) -> StepHealth {
        let waits = numbers.queue_depth + numbers.window_waiting != 0;
        let is_full = numbers.sequences.is_some_and(|it| it.backlog != 0);
        match () {
            () if !is_ready => StepHealth::Unavailable,
            () if minute.errors != 0 => StepHealth::Failing,
            () if is_full => StepHealth::Saturated,
            () if waits && numbers.utilization.is_none_or(|it| 0.9 <= it) => StepHealth::Saturated,
            () if minute.requests != 0 || numbers.in_flight != 0 => StepHealth::Working,
            () => StepHealth::Idle,
        }
    }
}

impl WorkNumbers {
    /// What a model did, whoever asked it.
    pub fn of_model(model: &Model, now: Instant) -> WorkNumbers {
        let stats: &Statistics = &model.stats;
        let minute = stats.recent.minute(now);
        let (_, instances) = model.health.instances();
        let cancelled = stats.failures(FailureReason::Canceled);
        let failed = stats.fail().count;
        let totals = stats.totals();
        let numbers = WorkNumbers {
            utilization: (instances != 0).then(|| (minute.busy / instances as f64).min(1.0)),
            queue_depth: stats.pending(),
            in_flight: stats.in_flight.count(),
            requests: totals.success.count + failed,
            errors: failed.saturating_sub(cancelled),
            cancelled,
            cache: stats.extra.cache.as_deref().map(CacheNumbers::of),
            sequences: stats.extra.sequences.as_deref().map(|it| it.usage().into()),
            batch_sizes: batch_sizes(totals.batches),
            ..WorkNumbers::default()
        };
        numbers.with(&minute, &stats.recent, now)
    }

    /// Rows of an execution; `None` without any.
    pub fn mean_batch(&self) -> Option<f64> {
        let executions: u64 = self.batch_sizes.iter().map(|it| it.count).sum();
        let rows: u64 = self.batch_sizes.iter().map(|it| it.count * u64::from(it.size)).sum();
        (executions != 0).then(|| rows as f64 / executions as f64)
    }
}

/// What the ensemble's own requests did; queue, batches and instances are the model's.
fn of_step(live: &StepActivity, model: WorkNumbers, now: Instant) -> WorkNumbers {
    let counters = live.counts();
    let numbers = WorkNumbers {
        window_waiting: counters.waiting,
        in_flight: counters.in_flight,
        requests: counters.requests,
        errors: counters.errors,
        cancelled: counters.cancelled,
        ..model
    };
    numbers.with(&live.recent.minute(now), &live.recent, now)
}

impl WorkNumbers {
    fn with(self, minute: &MinuteSummary, recent: &RecentStatistics, now: Instant) -> WorkNumbers {
        let us = |it: Duration| it.as_nanos() as f64 / 1e3;
        let last_error = recent.last_error().map(|it| LastFailure {
            text: it.text.to_string(),
            time: it.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            seconds_ago: now.saturating_duration_since(it.at).as_secs(),
        });
        WorkNumbers {
            p50_us: minute.p50.map(us),
            p99_us: minute.p99.map(us),
            requests_per_second: minute.per_second,
            recent_errors: minute.errors,
            last_error,
            ..self
        }
    }
}

impl CacheNumbers {
    fn of(stats: &CacheStatistics) -> CacheNumbers {
        CacheNumbers {
            hit_rate: stats.hit_rate(),
            hits: stats.hits().count,
            misses: stats.misses().count,
            coalesced: stats.coalesced_count(),
        }
    }
}

impl From<SequenceUsage> for SequenceNumbers {
    fn from(SequenceUsage { slots, taken, backlog }: SequenceUsage) -> SequenceNumbers {
        SequenceNumbers { slots, taken, backlog }
    }
}

fn batch_sizes(totals: Vec<(u32, BatchTotal)>) -> Vec<BatchSize> {
    let sizes = totals.into_iter().map(|(size, it)| BatchSize { size, count: it.count });
    let mut sizes: Vec<BatchSize> = sizes.collect();
    sizes.sort_by_key(|it| std::cmp::Reverse(it.count));
    sizes.truncate(MAX_BATCH_SIZES);
    sizes.sort_by_key(|it| it.size);
    sizes
}
