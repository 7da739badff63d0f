//! What configs of models say of sequences and queues, as far as load and advice go by it.

use troupe_base::config;
use troupe_proto::inference::{
    DataType, ModelConfig, ModelQueuePolicy,
    model_config::SchedulingChoice,
    model_sequence_batching::{StrategyChoice, control::Kind},
};

/// How a model keeps the requests of a sequence together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemberSequences {
    /// Sequences that each instance has at a time.
    pub(super) slots: u64,
    /// A slot is a row of the batch.
    pub(super) is_direct: bool,
    /// Requests without an id are sequences of their own.
    pub(super) is_iterative: bool,
    /// Does it want a text as the id, or a number? `None`: either.
    pub(super) has_text_ids: Option<bool>,
}

/// The policy of a model's queues, the narrowest of its levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueLimits {
    /// Requests that may wait; 0: no limit.
    pub(super) max_size: u64,
    /// How long they may; 0: for ever.
    pub(super) timeout_us: u64,
    /// Priority levels, each of which has a queue.
    pub(super) levels: u64,
}

impl MemberSequences {
    /// `None` of a model without sequences.
    pub(super) fn of(config: &ModelConfig) -> Option<MemberSequences> {
        let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else {
            return None;
        };
        let (candidates, is_direct) = match &batching.strategy_choice {
            Some(StrategyChoice::Oldest(it)) => (it.max_candidate_sequences, false),
            Some(StrategyChoice::Direct(_)) | None => (0, true),
        };
        let number = |it: i32| u32::try_from(it).unwrap_or(0);
        let slots = config::slots(number(candidates), number(config.max_batch_size)).into();
        let mut controls = batching.control_input.iter().flat_map(|it| &it.control);
        let id = controls.find(|it| it.kind() == Kind::ControlSequenceCorrid);
        let has_text_ids = id.map(|it| it.data_type() == DataType::TypeString);
        let is_iterative = batching.iterative_sequence;
        Some(MemberSequences { slots, is_direct, is_iterative, has_text_ids })
    }
}

impl QueueLimits {
    /// Of a model without `dynamic_batching` there are none.
    pub(super) fn of(config: &ModelConfig) -> QueueLimits {
        let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice else {
            return QueueLimits::default();
        };
        let all = batching.default_queue_policy.iter();
        let all: Vec<&ModelQueuePolicy> =
            all.chain(batching.priority_queue_policy.values()).collect();
        let least = |of: &dyn Fn(&ModelQueuePolicy) -> u64| {
            all.iter().map(|it| of(it)).filter(|it| *it != 0).min().unwrap_or(0)
        };
        QueueLimits {
            max_size: least(&|it| it.max_queue_size.into()),
            timeout_us: least(&|it| it.default_timeout_microseconds),
            levels: batching.priority_levels,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::config::read_text;

    fn config(scheduling: &str) -> ModelConfig {
        let text = format!("name: \"m\" backend: \"native\" max_batch_size: 4 {scheduling}");
        read_text(&text, "config.pbtxt").unwrap().proto
    }

    #[test]
    fn slots_are_rows_or_candidates() {
        for (scheduling, expected) in [
            ("dynamic_batching { }", None),
            ("sequence_batching { }", Some((4, true, false, None))),
            ("sequence_batching { direct { } }", Some((4, true, false, None))),
            ("sequence_batching { oldest { } }", Some((4, false, false, None))),
            (
                "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 9 } \
                 control_input { name: \"c\" control { kind: CONTROL_SEQUENCE_CORRID \
                 data_type: TYPE_STRING } } }",
                Some((9, false, true, Some(true))),
            ),
        ] {
            let found = MemberSequences::of(&config(scheduling));
            let found = found.map(|it| (it.slots, it.is_direct, it.is_iterative, it.has_text_ids));
            assert_eq!(found, expected, "{scheduling}");
        }
    }

    #[test]
    fn of_several_policies_the_narrowest_counts() {
        let policies = "dynamic_batching { priority_levels: 3 default_priority_level: 1 \
            default_queue_policy { max_queue_size: 9 } priority_queue_policy { key: 2 \
            value { max_queue_size: 5 default_timeout_microseconds: 700 } } }";
        for (scheduling, expected) in [
            ("", (0, 0, 0)),
            ("dynamic_batching { }", (0, 0, 0)),
            ("dynamic_batching { default_queue_policy { max_queue_size: 7 } }", (7, 0, 0)),
            (policies, (5, 700, 3)),
        ] {
            let found = QueueLimits::of(&config(scheduling));
            assert_eq!((found.max_size, found.timeout_us, found.levels), expected, "{scheduling}");
        }
    }
}
