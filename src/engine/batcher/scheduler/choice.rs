//! The table of schedulers: which one a config asks for.

use super::{decision::Scheduler, direct::Direct, dynamic::Dynamic};
use troupe_base::config::{Batching, ModelConfig};

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
    let direct = || -> Box<dyn Scheduler> { Box::<Direct>::default() };
    match &config.batching {
        Batching::Direct => {
            Scheduling { scheduler: direct(), preserves_order: false, is_immediate: true }
        }
        Batching::Dynamic(dynamic) => Scheduling {
            scheduler: match config.max_batch_size {
                // Without a batch dimension there is nothing to join.
                0 => direct(),
                max_rows => {
                    let ragged = config.inputs.iter().map(|input| input.ragged).collect();
                    Box::new(Dynamic::new(dynamic, max_rows, ragged))
                }
            },
            preserves_order: dynamic.preserve_ordering,
            is_immediate: false,
        },
    }
}
