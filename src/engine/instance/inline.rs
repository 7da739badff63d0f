//! The inline engine: executes in its batcher's thread, for models that take microseconds.

use super::{
    engine::{Capacity, Engine, EngineProgress},
    local::LocalModel,
    slot::OfferedSlot,
    work::InstanceWork,
};
use troupe_base::request::Pending;

pub(super) struct Inline(pub(super) LocalModel);

impl Engine for Inline {
    fn start(&mut self, work: InstanceWork, slot: OfferedSlot<'_>) -> EngineProgress {
        self.0.run(work, slot.begun);
        EngineProgress::Finished(None)
    }

    fn run_now(&mut self, pending: Pending) -> Option<Pending> {
        self.0.run_alone(pending);
        None
    }

    fn capacity(&self) -> Capacity {
        Capacity { is_inline: true, ..Capacity::default() }
    }
}
