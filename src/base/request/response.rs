//! What a model answers: one response, or of a decoupled model any number, and then the end.

use std::{sync::Arc, time::Instant};

use tokio::sync::oneshot;

use super::{Parameters, credit::Credit};
use crate::{
    error::{Error, Result},
    statistics::Timing,
    tensor::Tensor,
};

/// What a model answered.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// One place per output of the config; `None` where the model gave nothing.
    pub outputs: Vec<Option<Tensor>>,
    /// What the model says beside its tensors.
    pub parameters: Parameters,
    /// For statistics.
    pub timing: Timing,
    /// The instance that left outputs out, for errors about those.
    pub left_out_by: Option<Arc<str>>,
    /// Outputs that were asked for are not there.
    pub is_incomplete: bool,
    /// Outputs have rows that no row of the request asked for.
    pub has_unexpected_rows: bool,
}

/// One of several responses, or the failure of one; others or the end will follow.
#[derive(Debug)]
pub struct Part {
    /// What the client is told.
    pub result: Result<Response>,
    /// Held until that is on its way to the client: its maker sends no more than it has credit for.
    pub credit: Option<Arc<Credit>>,
}

impl Response {
    /// Says which instance this came from: its errors and what it left out have its name.
    #[inline]
    pub fn name_instance(result: &mut Result<Response>, name: &Arc<str>) {
        match result {
            Ok(response) if response.outputs.iter().any(Option::is_none) => {
                response.left_out_by = Some(name.clone());
            }
            Ok(_) => (),
            Err(error) => *error = error.clone().at_instance(name),
        }
    }
}

/// From a maker that does not wait.
impl From<Result<Response>> for Part {
    fn from(result: Result<Response>) -> Part {
        Part { result, credit: None }
    }
}

/// Whoever waits for an answer: a gateway, or the next step of an ensemble. Called at the moment
/// `now`, on any thread; must not block.
pub trait Answer: Send {
    /// The last or only response, or the failure of the request. Nothing is called after it.
    fn answer(self: Box<Self>, result: Result<Response>, now: Instant);

    /// The request is wrong and nobody has begun to work on it. Nothing is called after it.
    fn refuse(self: Box<Self>, error: Error, now: Instant) {
        self.answer(Err(error), now);
    }

    /// The request never was one of its model: counts it nowhere, if it would in a reply behind it.
    fn uncount(&mut self) {}

    /// Can it take any number of responses? Only then are `part` and `end` called.
    fn takes_many(&self) -> bool {
        false
    }

    /// A response that others or the end will follow.
    fn part(&mut self, part: Part, now: Instant) {
        let _ = now;
        tracing::error!("dropped a response that nobody takes: {:?}", part.result.err());
    }

    /// There was no response, or none after the last `part`; the request's time was spent so.
    fn end(self: Box<Self>, timing: Timing, now: Instant) {
        let _ = timing;
        self.answer(Err(Error::internal("the model ended without a response")), now);
    }
}

impl Answer for oneshot::Sender<Result<Response>> {
    fn answer(self: Box<Self>, result: Result<Response>, _: Instant) {
        // The gateway may have gone; then nobody misses the answer.
        let _ = self.send(result);
    }
}

/// Takes any number of responses and keeps none.
pub(super) struct Drain {
    pub(super) ended: oneshot::Sender<Result<()>>,
    pub(super) failed: Option<Error>,
}

impl Answer for Drain {
    fn answer(mut self: Box<Self>, result: Result<Response>, now: Instant) {
        self.part(result.into(), now);
        self.end(Timing::default(), now);
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn part(&mut self, part: Part, _: Instant) {
        self.failed = self.failed.take().or(part.result.err());
    }

    fn end(self: Box<Self>, _: Timing, _: Instant) {
        // Whoever waited may have given up.
        let _ = self.ended.send(self.failed.map_or(Ok(()), Err));
    }
}
