//! A request that is executed, or looked up in a Redis, while equal ones wait for its answer.

use std::{
    mem,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use super::key::AnswerKey;
use troupe_base::{
    error::{Error, ErrorKind, Result},
    request::{Answer, Reply, Response},
    statistics::Timing,
    trace::Span,
};

/// A request that was looked up, on its way to an answer.
pub(super) struct Asker {
    pub(super) reply: Reply,
    /// Where it is noted, if somebody watches it.
    pub(super) span: Option<Span>,
    /// What its lookup took.
    pub(super) lookup: Duration,
}

/// The model that is asked.
pub(super) trait LeadModel: Send + Sync + 'static {
    /// Answers a request that is not executed, because an answer was kept.
    fn hit(&self, asker: Asker, response: impl FnOnce(Timing) -> Response, now: Instant);

    /// Keeps an answer, and counts the request that got it.
    fn keep(self: &Arc<Self>, key: AnswerKey, response: &Response, lookup: Duration);

    /// Answers requests that waited for one that has this answer.
    fn answer_followers(&self, key: AnswerKey, response: &Response, is_executed: bool);

    /// The execution that others waited for failed: it would have failed for them, too.
    fn fail_followers(&self, key: AnswerKey, error: &Error);

    /// The request that others waited for gave up, or was not let in: another one is executed, the
    /// last one that is if one of them `was_refused`.
    fn pass_on(self: &Arc<Self>, key: AnswerKey, was_refused: bool);
}

/// The reply of such a request. However it ends, those that wait for it are seen to.
pub(super) struct Lead<M: LeadModel> {
    /// Not kept alive: it may be unloaded while a request of it hangs.
    model: Weak<M>,
    key: AnswerKey,
    asker: Option<Asker>,
    /// What its lookup took.
    pub(super) lookup: Duration,
    /// Others may wait for it.
    leads: bool,
    /// One that led before it was not let in.
    was_refused: bool,
}

impl<M: LeadModel> Lead<M> {
    pub(super) fn new(model: Weak<M>, key: AnswerKey, asker: Asker, leads: bool) -> Lead<M> {
        let lookup = asker.lookup;
        Lead { model, key, asker: Some(asker), lookup, leads, was_refused: false }
    }

    /// The same, behind one that was not let in, if so.
    pub(super) fn after(mut self, was_refused: bool) -> Lead<M> {
        self.was_refused = was_refused;
        self
    }

    pub(super) fn key(&self) -> AnswerKey {
        self.key
    }

    /// The answer was kept: nothing is executed.
    pub(super) fn found(mut self, response: &Response) {
        let Some(asker) = self.asker.take() else { return };
        let Some(model) = self.model.upgrade() else { return };
        let again = |timing| Response { timing, ..response.clone() };
        if mem::take(&mut self.leads) {
            model.answer_followers(self.key, response, false);
        }
        model.hit(Asker { lookup: self.lookup, ..asker }, again, Instant::now());
    }

    /// What a model is asked with.
    pub(super) fn into_reply(self) -> Reply {
        let since = self.asker.as_ref().map_or_else(Instant::now, |it| it.reply.since());
        Reply::new_at(self, since)
    }

    fn finish(&mut self, result: Result<Response>, now: Instant) {
        let Some(Asker { reply, .. }) = self.asker.take() else { return };
        let leads = mem::take(&mut self.leads);
        let Some(model) = self.model.upgrade() else { return reply.answer_at(result, now) };
        match result {
            Ok(response) => {
                model.keep(self.key, &response, self.lookup);
                let again = leads.then(|| without_flaws(&response));
                reply.answer_at(Ok(response), now);
                if let Some(response) = again {
                    model.answer_followers(self.key, &response, true);
                }
            }
            Err(error) => {
                let (kind, was_refused) = (error.kind(), self.was_refused);
                // Whoever waits is not asked for one after the other where nobody is let in.
                if leads && (kind.is_abandoned() || (is_refusal(kind) && !was_refused)) {
                    model.pass_on(self.key, was_refused || is_refusal(kind));
                } else if leads {
                    model.fail_followers(self.key, &error);
                }
                reply.answer_at(Err(error), now);
            }
        }
    }
}

impl<M: LeadModel> Answer for Lead<M> {
    fn answer(mut self: Box<Self>, result: Result<Response>, now: Instant) {
        self.finish(result, now);
    }

    fn refuse(mut self: Box<Self>, error: Error, _: Instant) {
        let Some(Asker { reply, .. }) = self.asker.take() else { return };
        if let (true, Some(model)) = (mem::take(&mut self.leads), self.model.upgrade()) {
            model.fail_followers(self.key, &error);
        }
        reply.refuse(error);
    }
}

impl<M: LeadModel> Drop for Lead<M> {
    fn drop(&mut self) {
        if self.asker.is_some() {
            self.finish(
                Err(Error::unavailable("the model stopped before it answered")),
                Instant::now(),
            );
        }
    }
}

/// Was it not let in? Then it was not executed, and another one may be.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::ResourceExhausted | ErrorKind::TooLarge)
}

/// Flaws are counted once, with the request that was executed.
fn without_flaws(response: &Response) -> Response {
    Response {
        timing: Timing::default(),
        is_incomplete: false,
        has_unexpected_rows: false,
        ..response.clone()
    }
}
