//! Whom the outputs of a run are for: what goes on once it has ended.

use std::time::{Duration, Instant};

use crate::ensemble::plan::Plan;
use troupe_base::{
    error::Error,
    request::{Request, Response},
    statistics::Timing,
    tensor::Tensor,
};

/// Goes on with what a run made: the reply to its client, or the stream that it is an iteration of.
///
/// It is called on whichever thread ends the run, and must not block.
pub(crate) trait Continuation: Send {
    /// Does anybody still wait for the outputs?
    fn is_wanted(&self) -> bool {
        true
    }

    /// Is a run without any output a failure?
    fn needs_outputs(&self) -> bool;

    /// The run holds these tensors now.
    fn note_held(&mut self, tensors: &mut dyn Iterator<Item = &Tensor>) {
        let _ = tensors;
    }

    /// All steps have ended; those that all others waited for were busy for so long.
    fn answer(self: Box<Self>, plan: &Plan, response: Response, busy: Duration, now: Instant);

    /// The run has led to a request of a decoupled step, whose responses are not of this run.
    fn call(self: Box<Self>, request: Request, timing: Timing);

    /// The first failure.
    fn fail(self: Box<Self>, error: Error, now: Instant);
}
