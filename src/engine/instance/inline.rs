//! The inline engine: executes in its batcher's thread, for models that take microseconds.

use super::{
    engine::{Capacity, Engine, Started},
    local::LocalModel,
    slot::Slot,
    work::Work,
};
use troupe_base::request::Pending;

pub(super) struct Inline(pub(super) LocalModel);

impl Engine for Inline {
    fn start(&mut self, work: Work, slot: Slot<'_>) -> Started {
        self.0.run(work, slot.begun);
        Started::Finished(None)
    }

    fn run_now(&mut self, pending: Pending) -> Option<Pending> {
        self.0.run_alone(pending);
        None
    }

    fn capacity(&self) -> Capacity {
        Capacity { is_inline: true, ..Capacity::default() }
    }
}
