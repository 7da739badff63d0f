//! Those who wait for a model's own `is_ready`: one question at a time, shared by all of them.

use tokio::sync::oneshot;

use troupe_base::error::Result;

/// Those who wait for the worker's answer.
#[derive(Default)]
pub(crate) struct ReadyChecks {
    /// The worker was asked, and has not answered.
    is_asked: bool,
    waiting: Vec<oneshot::Sender<Result<()>>>,
}

impl ReadyChecks {
    /// Waits with the others; is the worker to be asked?
    pub(super) fn wait(&mut self, answer: oneshot::Sender<Result<()>>) -> bool {
        // A model that never answers is asked again and again by those who give up.
        self.waiting.retain(|it| !it.is_closed());
        self.waiting.push(answer);
        !std::mem::replace(&mut self.is_asked, true)
    }

    /// Tells all.
    pub(crate) fn answer(&mut self, verdict: &Result<()>) {
        self.is_asked = false;
        for waiting in self.waiting.drain(..) {
            // Whoever has gone does not miss it.
            let _ = waiting.send(verdict.clone());
        }
    }
}
