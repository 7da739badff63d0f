//! Calls a decoupled step: one request of each stream at a time, any number of responses.

use std::{sync::Arc, time::Instant};

use super::{
    stage::{DecoupledCall, StageInput},
    stream_run::StreamRun,
};
use crate::ensemble::{
    plan::StageIndex,
    run::{StepTiming, StepTurn, StepWork, context_after, release},
};
use troupe_base::{
    error::{Error, Result},
    metrics::StepMetrics,
    request::{Answer, BatchFit, Credit, Part, Reply, Response, batch_fit},
    statistics::Timing,
};

impl StepWork for StreamRun {
    fn is_given_up(&self) -> bool {
        self.context.is_stopped() || self.is_over()
    }

    fn metrics(&self, step: usize) -> &StepMetrics {
        &self.plan.steps[step].metrics
    }

    fn run(self: Arc<Self>, turn: StepTurn) -> bool {
        // Kept, as the responses own the stream.
        let plan = self.plan.clone();
        let step = &plan.steps[turn.step];
        let Some(decoupled) = step.decoupled() else { return false };
        let Some(call) = self.take_call(step.stage) else { return false };
        let DecoupledCall { mut request, credit, is_last } = call;
        if let Some(span) = &request.context.span {
            request.context = Arc::new(request.context.under(span.at_step(turn.step)));
        }
        let model = &step.model;
        let most = model.config.max_batch_size;
        let (fit, batch) = batch_fit(most, &request);
        let stopped = self.context.stopped();
        let mut responses = CallResponses {
            reads: step.stage,
            feeds: decoupled.feeds,
            is_reentered: decoupled.is_reentered,
            batch,
            timing: StepTiming::new(turn, !self.context.is_warmup),
            credit,
            is_last,
            failed: None,
            stream: self,
        };
        if let Some(error) = stopped {
            responses.refuse(error);
            return false;
        }
        match fit {
            BatchFit::Fits => {
                let now = Instant::now();
                responses.timing.begin(&plan, now);
                model.infer(request, Reply::new_at(responses, now));
                return true;
            }
            // No rows have no responses.
            BatchFit::Empty => responses.close(Timing::default(), Instant::now()),
            BatchFit::Split => responses.refuse(Error::invalid(format!(
                "a batch of {batch} rows for model '{}', which takes up to {most} rows at once; as \
                 it is decoupled, what it responds to parts of a batch cannot be put together",
                model.name()
            ))),
        }
        false
    }
}

/// Waits for the responses of a decoupled step's model.
struct CallResponses {
    stream: Arc<StreamRun>,
    /// The stage whose iteration made the request.
    reads: StageIndex,
    /// The stage whose iterations the responses begin.
    feeds: StageIndex,
    is_reentered: bool,
    batch: u32,
    timing: StepTiming,
    credit: Option<Arc<Credit>>,
    /// No call follows.
    is_last: bool,
    /// The first failure among the responses.
    failed: Option<Error>,
}

impl CallResponses {
    /// Begins one more iteration, on whatever thread this is.
    fn add(&self, part: Part, is_last: bool, now: Instant) {
        let Part { result, credit } = part;
        let (stream, batch) = (&self.stream, self.batch);
        if result.is_ok() && stream.context.is_stopped() {
            return;
        }
        let result = result.and_then(|response| {
            let sequence = context_after(&stream.context, &response.parameters)?;
            Ok((response, sequence))
        });
        match result {
            Ok((response, sequence)) => {
                let credit = together(credit.filter(|_| !self.is_reentered), &self.credit);
                let input = StageInput { response, batch, sequence, credit, is_last };
                stream.add(self.feeds, input);
            }
            Err(source) => {
                let step = self.timing.turn.step;
                if let Some(tap) = &stream.tap {
                    tap.failed(step, &source);
                }
                let error = stream.plan.at_step(step, source, &stream.context);
                stream.fail(self.feeds, error, now);
            }
        }
    }

    /// There will be no more responses to this request.
    fn close(&self, timing: Timing, now: Instant) {
        self.stream.call_ended(self.reads, self.is_last, timing, now);
    }

    fn refuse(&self, error: Error) {
        let now = Instant::now();
        self.add(Err(error).into(), true, now);
        self.close(Timing::default(), now);
    }

    fn note_failure(&mut self, result: &Result<Response>) {
        self.failed = self.failed.take().or_else(|| result.as_ref().err().cloned());
    }

    fn measure(&self, timing: Option<&Timing>, now: Instant) {
        let timing = timing.filter(|_| self.failed.is_none());
        self.timing.end(&self.stream.plan, timing, now);
        self.timing.show(&self.stream.plan, self.failed.as_ref(), now);
    }

    fn release(&self) {
        release(&self.stream.step_addrs, &self.timing.turn);
    }
}

impl Answer for CallResponses {
    fn answer(mut self: Box<Self>, result: Result<Response>, now: Instant) {
        self.note_failure(&result);
        let timing = result.as_ref().ok().map(|response| response.timing);
        self.measure(timing.as_ref(), now);
        self.add(result.into(), self.is_last, now);
        self.release();
        self.close(timing.unwrap_or_default(), now);
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn part(&mut self, part: Part, now: Instant) {
        self.note_failure(&part.result);
        self.add(part, false, now);
    }

    fn end(self: Box<Self>, timing: Timing, now: Instant) {
        self.measure(Some(&timing), now);
        self.release();
        self.close(timing, now);
    }
}

/// Gives both back once the last response was taken.
fn together(own: Option<Arc<Credit>>, calls: &Option<Arc<Credit>>) -> Option<Arc<Credit>> {
    let Some(calls) = calls.clone() else { return own };
    let Some(own) = own else { return Some(calls) };
    Some(Credit::new(move || drop((own, calls))))
}
