//! Readiness by the model's own code: asks the worker to run `is_ready()`.

use tokio::sync::oneshot;

use super::link::{WorkerLink, WorkerState};
use crate::python::protocol::{decode::Cursor, frames::frame_head, kinds};
use troupe_base::error::{Error, Result};

impl WorkerLink {
    /// The worker runs it behind what it has in work, unless that is coroutines.
    pub(crate) fn check(&mut self, answer: oneshot::Sender<Result<()>>) {
        let WorkerState::Up(connection) = &mut self.state else {
            let _ = answer.send(Ok(()));
            return;
        };
        if self.checks.wait(answer) {
            connection.write(&frame_head(kinds::CHECK, 0));
        }
    }

    /// What the model says. An error is the worker's, and its end.
    pub(crate) fn check_answered(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
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
