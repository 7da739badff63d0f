//! Asks a worker what its model says of being ready: one question at a time, shared by all who wait.

use tokio::sync::oneshot;

use crate::python::protocol::decode::Cursor;
use crate::python::protocol::frames::frame_head;
use crate::python::worker::link::Link;
use crate::python::worker::link::State;
use troupe_base::error::{Error, Result};

/// Those who wait for the worker's answer.
#[derive(Default)]
pub(crate) struct Checks {
    /// The worker was asked, and has not answered.
    is_asked: bool,
    waiting: Vec<oneshot::Sender<Result<()>>>,
}

impl Checks {
    /// Waits with the others; is the worker to be asked?
    fn wait(&mut self, answer: oneshot::Sender<Result<()>>) -> bool {
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

impl Link {
    /// The worker runs it behind what it has in work, unless that is coroutines.
    pub(crate) fn check(&mut self, answer: oneshot::Sender<Result<()>>) {
        let State::Up(connection) = &mut self.state else {
            let _ = answer.send(Ok(()));
            return;
        };
        if self.checks.wait(answer) {
            connection.write(&frame_head(b'h', 0));
        }
    }

    /// What the model says. An error is the worker's, and its end.
    pub(crate) fn checked(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
        let (verdict, size) = (cursor.u64()?, cursor.u64()?);
        let text = cursor.text(size)?;
        let instance = &self.setup.spec.instance;
        let verdict = match verdict {
            0 => Ok(()),
            1 => Err(format!("Model '{instance}' is not ready (user-defined check failed).")),
            2 => Err(format!("Model '{instance}' is not ready: {text}")),
            other => return Err(format!("the verdict {other}")),
        };
        self.checks.answer(&verdict.map_err(Error::unavailable));
        Ok(())
    }
}
