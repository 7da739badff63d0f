//! The inline engine: executes in its batcher's thread, for models that take microseconds.

use super::{
    engine::{Engine, EngineProgress},
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

    fn runs_now(&self) -> bool {
        true
    }

    fn run_now(&mut self, pending: Pending) {
        self.0.run_alone(pending);
    }
}
