//! The inline engine: executes in its batcher's thread, for models that take microseconds.

use super::{
    engine::{Engine, EngineProgress},
    local::{DueAnswer, LocalModel},
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
        self.0.runs_alone()
    }

    fn run_now(&mut self, pending: Pending) -> Option<DueAnswer> {
        Some(self.0.run_alone(pending))
    }
}
