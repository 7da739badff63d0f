//! The outputs of a run are the client's: one answer, counted as the ensemble's execution.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::continuation::Continuation;
use crate::ensemble::plan::Plan;
use troupe_base::{
    error::Error,
    request::{Reply, Request, Response},
    statistics::{Statistics, Timing},
};

/// Where the one answer of an ensemble goes.
pub(crate) struct ClientReply {
    pub(crate) stats: Arc<Statistics>,
    /// What statistics count; 0 for a warm-up.
    pub(crate) rows: u32,
    pub(crate) is_warmup: bool,
    pub(crate) reply: Reply,
}

impl Continuation for ClientReply {
    fn needs_outputs(&self) -> bool {
        true
    }

    fn answer(self: Box<Self>, plan: &Plan, response: Response, busy: Duration, now: Instant) {
        if !self.is_warmup {
            let whole = now.saturating_duration_since(self.reply.since());
            plan.metrics.answered_with(whole, busy);
        }
        self.stats.execution(self.rows, &response.timing, now);
        self.reply.answer_at(Ok(response), now);
    }

    fn call(self: Box<Self>, _: Request, _: Timing) {
        // Plans with decoupled steps answer streams.
        self.reply.answer(Err(Error::internal("a decoupled step has no stream to respond to")));
    }

    fn fail(self: Box<Self>, error: Error, now: Instant) {
        self.reply.answer_at(Err(error), now);
    }
}
