//! Which requests of an instance's sequences run as one batch, and when: direct or oldest strategy.

use std::time::{Duration, Instant};

use super::{
    super::batch_rule::{BatchChoice, BatchRule, can_join},
    slots::InstanceSlots,
};
use troupe_base::config::{ModelConfig, SequenceStrategy};

/// When the rows of an instance run.
pub(super) enum RowRule {
    /// Each sequence has the row of its slot.
    Direct(DirectRule),
    /// The oldest requests, in any rows.
    Oldest(BatchRule),
}

/// When a batch with a row for each slot runs.
pub(super) struct DirectRule {
    max_delay: Duration,
    /// So many rows need not wait for others; 0: no row waits.
    min_rows: f32,
    /// Which inputs may have other shapes in each request.
    ragged: Vec<bool>,
}

/// What an instance could execute now.
pub(super) enum RowChoice {
    /// The next requests of these slots, in the order of their rows; `None`: a null request.
    Run(Vec<Option<usize>>),
    /// Look again then.
    Delay { until: Instant },
    /// None of its slots has a request that waits.
    Nothing,
}

impl RowRule {
    pub(super) fn new(config: &ModelConfig, strategy: &SequenceStrategy) -> RowRule {
        let ragged = config.inputs.iter().map(|input| input.ragged).collect();
        let max_rows = config.max_batch_size.max(1);
        match strategy {
            SequenceStrategy::Direct(direct) => RowRule::Direct(DirectRule {
                max_delay: direct.max_queue_delay,
                min_rows: direct.minimum_slot_utilization * max_rows as f32,
                ragged,
            }),
            SequenceStrategy::Oldest(oldest) => RowRule::Oldest(BatchRule::new(
                &oldest.preferred,
                oldest.max_queue_delay,
                max_rows,
                ragged,
            )),
        }
    }

    /// Which requests of an instance that could begin now run.
    pub(super) fn choose(&self, slots: &InstanceSlots, now: Instant) -> RowChoice {
        match self {
            RowRule::Direct(rule) => rule.choose(slots, now),
            RowRule::Oldest(rule) => oldest(rule, slots, now),
        }
    }
}

impl DirectRule {
    /// The oldest request says which shapes the batch has; others wait for the next one.
    fn choose(&self, slots: &InstanceSlots, now: Instant) -> RowChoice {
        let first = slots.fronts().min_by_key(|it| it.since);
        let Some(first) = first else { return RowChoice::Nothing };
        let joins = slots.fronts().filter(|it| can_join(first.pending, it.pending, &self.ragged));
        let ready: Vec<usize> = joins.map(|it| it.row).collect();
        let due = first.since + self.max_delay;
        let waits = !self.max_delay.is_zero() && (ready.len() as f32) < self.min_rows;
        if waits && now < due {
            return RowChoice::Delay { until: due };
        }
        let last = ready.last().copied().unwrap_or_default();
        let mut rows = vec![None; last + 1];
        ready.into_iter().for_each(|row| rows[row] = Some(row));
        RowChoice::Run(rows)
    }
}

/// The rule sees the next request of each sequence, the oldest first.
fn oldest(rule: &BatchRule, slots: &InstanceSlots, now: Instant) -> RowChoice {
    let mut fronts: Vec<_> = slots.fronts().collect();
    fronts.sort_by_key(|it| it.since);
    match rule.choose(fronts.iter().map(|it| (it.pending, it.since)), now) {
        BatchChoice::Nothing => RowChoice::Nothing,
        BatchChoice::Delay { until } => RowChoice::Delay { until },
        BatchChoice::Take(count) => {
            RowChoice::Run(fronts.into_iter().take(count).map(|it| Some(it.row)).collect())
        }
    }
}
