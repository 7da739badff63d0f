//! The inline engine: executes in its batcher's thread what takes microseconds, by its bytes; more
//! of them on a thread that may block.

use std::time::Instant;

use tokio::task::spawn_blocking;

use super::{
    engine::{Engine, EngineProgress},
    local::{DueAnswer, LocalModel},
    slot::OfferedSlot,
    work::InstanceWork,
};
use troupe_base::request::{Pending, Request};

/// A model without a thread of its own.
pub(super) struct Inline {
    /// `None` while it is lent to a blocking thread, and for ever if it was lost there.
    model: Option<Box<LocalModel>>,
    /// Bytes of the inputs of what takes microseconds; `None`: all does.
    max_bytes: Option<usize>,
}

impl Inline {
    pub(super) fn new(model: LocalModel, max_bytes: Option<usize>) -> Inline {
        Inline { model: Some(Box::new(model)), max_bytes }
    }

    /// Do all these together take microseconds?
    fn covers<'a>(&self, mut requests: impl Iterator<Item = &'a Request>) -> bool {
        let Some(max_bytes) = self.max_bytes else { return true };
        let left = requests.try_fold(max_bytes, |left, request| {
            let mut sizes = request.inputs.iter().flatten().map(|tensor| tensor.data().len());
            sizes.try_fold(left, usize::checked_sub)
        });
        left.is_some()
    }
}

impl Engine for Inline {
    fn start(&mut self, work: InstanceWork, slot: OfferedSlot<'_>) -> EngineProgress {
        let Some(mut model) = self.model.take() else { return EngineProgress::Ended(work) };
        if self.covers(work.0.iter().flatten().map(|pending| &pending.request)) {
            model.run(work, slot.begun);
            self.model = Some(model);
            return EngineProgress::Finished(None);
        }
        let guard = slot.guard(work.executions());
        spawn_blocking(move || {
            model.run(work, Instant::now());
            guard.give_back(model);
        });
        EngineProgress::Later
    }

    fn may_run_now(&self) -> bool {
        self.model.as_ref().is_some_and(|model| model.runs_alone())
    }

    fn runs_now(&self, request: &Request) -> bool {
        self.may_run_now() && self.covers(std::iter::once(request))
    }

    fn run_now(&mut self, asked: &mut Option<Pending>, due: &mut Option<DueAnswer>) {
        if let Some(model) = &mut self.model {
            *due = model.run_alone(asked);
        }
    }

    fn take_back(&mut self, returned: Box<LocalModel>) {
        // One of an earlier engine is of no more use.
        self.model.get_or_insert(returned);
    }
}
