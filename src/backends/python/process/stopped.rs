//! Workers that are stopped (SIGSTOP): how long one may be before it is ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{task::AbortHandle, time::sleep};

use super::children::Parent;

/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Looks in a row that find a worker stopped before it is ended: as many seconds for whoever stopped
/// it to let it go on. Counted, not timed: a server that was stopped with it counts none meanwhile.
const MAX_STOPPED_LOOKS: u32 = 3;

/// Why such a worker was ended.
pub(crate) const WAS_STOPPED: &str = "it was stopped (SIGSTOP) and did not go on, so it was ended";

/// Looks in a row that found a worker stopped, one a second.
#[derive(Default)]
pub(crate) struct StoppedLooks(u32);

impl StoppedLooks {
    /// What the next look finds. Is it stopped for too long?
    pub(crate) fn add(&mut self, is_stopped: bool) -> bool {
        self.0 = if is_stopped { self.0 + 1 } else { 0 };
        MAX_STOPPED_LOOKS < self.0
    }
}

/// Ends a worker that is stopped for too long, until this is dropped.
pub(crate) struct StopWatch {
    task: AbortHandle,
    has_ended_it: Arc<AtomicBool>,
}

impl StopWatch {
    /// Of the worker with this number.
    pub(crate) fn begin(parent: Arc<dyn Parent>, number: u64) -> StopWatch {
        let has_ended_it = Arc::new(AtomicBool::new(false));
        let (ended, reaper) = (has_ended_it.clone(), parent.children().reaper().clone());
        let task = reaper.spawn(async move {
            let mut looks = StoppedLooks::default();
            while !looks.add(parent.children().is_stopped(number)) {
                sleep(LOOK_PAUSE).await;
            }
            ended.store(true, Ordering::Release);
            parent.children().kill(number);
        });
        StopWatch { task: task.abort_handle(), has_ended_it }
    }

    /// Why the worker was ended, if it was.
    pub(crate) fn reason(&self) -> Option<String> {
        self.has_ended_it.load(Ordering::Acquire).then(|| WAS_STOPPED.to_owned())
    }
}

impl Drop for StopWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
