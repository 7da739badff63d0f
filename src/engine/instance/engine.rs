//! The trait of what runs an instance's executions: its batcher's thread, its own, or a process.

use std::{num::NonZeroUsize, time::Duration};

use super::{
    local::{DueAnswer, LocalModel},
    slot::OfferedSlot,
    work::InstanceWork,
};
use troupe_base::{
    backend::Remote,
    request::{Pending, Request},
};

/// What runs an instance's executions. It lives on its batcher's thread.
pub(super) trait Engine {
    /// Runs or starts all groups, and sees to it that everyone in them is answered.
    fn start(&mut self, work: InstanceWork, slot: OfferedSlot<'_>) -> EngineProgress;

    /// Are there single requests that it executes before a call of it returns?
    fn may_run_now(&self) -> bool {
        false
    }

    /// Does it so with this one?
    fn runs_now(&self, request: &Request) -> bool {
        let _ = request;
        false
    }

    /// Takes and runs what is asked before this returns, if it `runs_now`, and says what is `due`.
    ///
    /// Both stay where they are: to move them costs as much as a short model.
    fn run_now(&mut self, asked: &mut Option<Pending>, due: &mut Option<DueAnswer>) {
        let _ = (asked, due);
    }

    /// Takes back the model that was lent with the last work.
    fn take_back(&mut self, returned: Box<LocalModel>) {
        drop(returned);
    }

    /// How much work it may be given at once.
    fn capacity(&self) -> Capacity {
        Capacity::default()
    }

    /// The process it is attached to, if it is.
    fn worker(&mut self) -> Option<&mut dyn Remote> {
        None
    }
}

/// What became of work that was handed over.
pub(super) enum EngineProgress {
    /// All of it is executed; what one execution took, if somebody looked.
    Finished(Option<Duration>),
    /// A `SlotGuard` releases the slot when it can take more.
    Later,
    /// None of it was begun: the engine has ended.
    Ended(InstanceWork),
}

/// How much work an instance may be given at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity {
    /// Executions at a time, for a model that does other things while one of them waits.
    pub(super) concurrency: Option<NonZeroUsize>,
    /// Work can wait in front of it while it executes: it is in another process.
    pub(super) has_queue: bool,
}
