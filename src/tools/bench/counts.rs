//! The counters of the statistics extension, and how they changed.

use std::collections::BTreeMap;

use troupe_proto::inference::{ModelStatistics, StatisticDuration};

/// One version of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ModelKey {
    pub(super) name: String,
    pub(super) version: String,
}

impl ModelKey {
    /// Whose counters these are.
    pub(super) fn of(statistics: &ModelStatistics) -> ModelKey {
        ModelKey { name: statistics.name.clone(), version: statistics.version.clone() }
    }
}

/// What happened to one version of a model; times in nanoseconds, those of all requests together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Requests that were answered.
    pub(super) answered: u64,
    pub(super) failed: u64,
    /// Of those that were answered, out of the response cache.
    pub(super) hits: u64,
    /// From their arrival to their answer.
    pub(super) whole_ns: u64,
    pub(super) queue_ns: u64,
    pub(super) input_ns: u64,
    pub(super) infer_ns: u64,
    pub(super) output_ns: u64,
    /// Rows executed.
    pub(super) inferences: u64,
    pub(super) executions: u64,
    /// Executions by their rows.
    pub(super) batches: BTreeMap<u64, Batches>,
}

/// Executions of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Batches {
    pub(super) count: u64,
    /// Of all three parts, of all of them.
    pub(super) ns: u64,
}

impl Counts {
    /// As the server tells them.
    pub(super) fn of(it: &ModelStatistics) -> Counts {
        let of = it.inference_stats.unwrap_or_default();
        let count = |it: &Option<StatisticDuration>| it.as_ref().map_or(0, |it| it.count);
        let ns = |it: &Option<StatisticDuration>| it.as_ref().map_or(0, |it| it.ns);
        let batch = |it: &troupe_proto::inference::InferBatchStatistics| {
            let all = ns(&it.compute_input)
                .saturating_add(ns(&it.compute_infer))
                .saturating_add(ns(&it.compute_output));
            (it.batch_size, Batches { count: count(&it.compute_infer), ns: all })
        };
        Counts {
            answered: count(&of.success),
            failed: count(&of.fail),
            hits: count(&of.cache_hit),
            whole_ns: ns(&of.success),
            queue_ns: ns(&of.queue),
            input_ns: ns(&of.compute_input),
            infer_ns: ns(&of.compute_infer),
            output_ns: ns(&of.compute_output),
            inferences: it.inference_count,
            executions: it.execution_count,
            batches: it.batch_stats.iter().map(batch).collect(),
        }
    }

    /// What came since `before`; nothing where a reload began anew.
    pub(super) fn since(&self, before: &Counts) -> Counts {
        let batches = self.batches.iter().filter_map(|(rows, now)| {
            let then = before.batches.get(rows).copied().unwrap_or_default();
            let count = now.count.saturating_sub(then.count);
            (0 < count).then(|| (*rows, Batches { count, ns: now.ns.saturating_sub(then.ns) }))
        });
        Counts {
            answered: self.answered.saturating_sub(before.answered),
            failed: self.failed.saturating_sub(before.failed),
            hits: self.hits.saturating_sub(before.hits),
            whole_ns: self.whole_ns.saturating_sub(before.whole_ns),
            queue_ns: self.queue_ns.saturating_sub(before.queue_ns),
            input_ns: self.input_ns.saturating_sub(before.input_ns),
            infer_ns: self.infer_ns.saturating_sub(before.infer_ns),
            output_ns: self.output_ns.saturating_sub(before.output_ns),
            inferences: self.inferences.saturating_sub(before.inferences),
            executions: self.executions.saturating_sub(before.executions),
            batches: batches.collect(),
        }
    }

    /// Nanoseconds in which an instance was executing, of all instances together.
    pub(super) fn busy_ns(&self) -> f64 {
        self.batches.values().map(|it| it.ns as f64).sum()
    }

    /// Rows of an execution, on average; 0 without any.
    pub(super) fn mean_batch(&self) -> f64 {
        self.inferences as f64 / self.executions.max(1) as f64
    }

    /// A total as the mean of an answered request, in nanoseconds; 0 without any.
    pub(super) fn each(&self, total_ns: u64) -> f64 {
        total_ns as f64 / self.answered.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_proto::inference::{InferBatchStatistics, InferStatistics};

    fn statistics(requests: u64) -> ModelStatistics {
        let total = |ns| Some(StatisticDuration { count: requests, ns: requests * ns });
        let batch = InferBatchStatistics {
            batch_size: 2,
            compute_input: total(1),
            compute_infer: total(10),
            compute_output: total(2),
        };
        ModelStatistics {
            inference_count: 2 * requests,
            execution_count: requests,
            inference_stats: Some(InferStatistics {
                success: total(20),
                queue: total(5),
                ..InferStatistics::default()
            }),
            batch_stats: vec![batch],
            ..ModelStatistics::default()
        }
    }

    #[test]
    fn only_what_came_since_counts() {
        let (before, now) = (Counts::of(&statistics(3)), Counts::of(&statistics(10)));
        let since = now.since(&before);
        assert_eq!((since.answered, since.inferences, since.executions), (7, 14, 7));
        assert_eq!((since.busy_ns(), since.mean_batch()), (91.0, 2.0));
        assert_eq!((since.each(since.queue_ns), since.each(since.whole_ns)), (5.0, 20.0));
        assert_eq!(before.since(&now), Counts::default());
        assert_eq!(Counts::default().each(5), 5.0);
    }
}
