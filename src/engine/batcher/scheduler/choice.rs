//! The table of schedulers: which one a config asks for.

use super::{
    decision::Scheduler,
    direct::Direct,
    dynamic::Dynamic,
    priority_queue::PriorityQueue,
    queue::{PlainQueue, RequestQueue},
};
use troupe_base::config::{Batching, DynamicBatching, ModelConfig, PriorityLevels};

/// A scheduler, and what its batcher has to know beside it.
pub(in crate::batcher) struct Scheduling {
    pub(in crate::batcher) scheduler: Box<dyn Scheduler>,
    /// Answers go out in the order of their requests.
    pub(in crate::batcher) preserves_order: bool,
    /// Nothing is gained by waiting in the scheduler: requests may run as they come, and queue in
    /// front of a busy instance. False for a scheduler that orders or joins requests: what it never
    /// sees runs first come, first served.
    pub(in crate::batcher) is_immediate: bool,
}

/// The scheduler for a model.
pub(in crate::batcher) fn for_config(config: &ModelConfig) -> Scheduling {
    match &config.batching {
        // Sequences are refused when their config is checked.
        Batching::Direct | Batching::Sequence(_) => Scheduling {
            scheduler: Box::<Direct>::default(),
            preserves_order: false,
            is_immediate: true,
        },
        Batching::Dynamic(dynamic) => {
            let is_plain = dynamic.queues == PriorityLevels::default();
            Scheduling {
                scheduler: match is_plain {
                    true => of(config, dynamic, PlainQueue::default()),
                    false => of(config, dynamic, PriorityQueue::new(dynamic.queues.clone())),
                },
                preserves_order: dynamic.preserve_ordering,
                is_immediate: false,
            }
        }
    }
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
