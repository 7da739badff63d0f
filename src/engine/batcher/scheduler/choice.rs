//! The table of schedulers: which one a config asks for.

use std::time::Instant;

use super::{
    decision::Scheduler,
    direct::Direct,
    dynamic::Dynamic,
    priority_queue::PriorityQueue,
    queue::{PlainQueue, RequestQueue},
    sequence::Sequences,
};
use crate::instance::StateFeed;
use troupe_base::{
    config::{Batching, DynamicBatching, ModelConfig, PriorityLevels},
    error::Result,
};

/// A scheduler, and what its batcher has to know beside it.
pub(in crate::batcher) struct Scheduling {
    pub(in crate::batcher) scheduler: Box<dyn Scheduler>,
    /// Answers go out in the order of their requests.
    pub(in crate::batcher) preserves_order: bool,
    /// Nothing is gained by waiting in the scheduler: requests may run as they come, and queue in
    /// front of a busy instance. False for a scheduler that orders or joins requests: what it never
    /// sees runs first come, first served.
    pub(in crate::batcher) is_immediate: bool,
    /// It is told when what it gave a slot is through, and when an instance has forgotten what it
    /// was told. An instance is given nothing before it is through.
    pub(in crate::batcher) is_stateful: bool,
}

/// Is nothing gained by waiting in the scheduler of such a model?
pub(in crate::batcher) fn is_immediate(config: &ModelConfig) -> bool {
    matches!(config.batching, Batching::Direct)
}

/// The scheduler for a model with so many instances, and with what it keeps for its sequences.
pub(in crate::batcher) fn for_config(
    config: &ModelConfig,
    states: Option<&StateFeed>,
    instances: usize,
    now: Instant,
) -> Result<Scheduling> {
    let scheduling = Scheduling {
        scheduler: Box::<Direct>::default(),
        preserves_order: false,
        is_immediate: is_immediate(config),
        is_stateful: false,
    };
    Ok(match &config.batching {
        Batching::Direct => scheduling,
        Batching::Dynamic(dynamic) => {
            let is_plain = dynamic.queues == PriorityLevels::default();
            Scheduling {
                scheduler: match is_plain {
                    true => of(config, dynamic, PlainQueue::default()),
                    false => of(config, dynamic, PriorityQueue::new(dynamic.queues.clone())),
                },
                preserves_order: dynamic.preserve_ordering,
                ..scheduling
            }
        }
        // An instance executes one batch after the other, in the order in which requests were taken:
        // so are their answers, with `preserve_ordering` or without it.
        Batching::Sequence(batching) => Scheduling {
            scheduler: Box::new(
                Sequences::new(config, batching, instances, now)?
                    .keeping(states.map(|it| it.set().clone())),
            ),
            is_stateful: true,
            ..scheduling
        },
    })
}

/// The scheduler for a model with dynamic batching.
fn of(
    config: &ModelConfig,
    dynamic: &DynamicBatching,
    queue: impl RequestQueue + 'static,
) -> Box<dyn Scheduler> {
    match config.max_batch_size {
        // Without a batch dimension there is nothing to join.
        0 => Box::new(Direct::new(queue)),
        max_rows => {
            let ragged = config.inputs.iter().map(|input| input.ragged).collect();
            Box::new(Dynamic::new(dynamic, queue, max_rows, ragged))
        }
    }
}
