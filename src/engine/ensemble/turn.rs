//! A decoupled step's work: one request of each client at a time, and an iteration per response.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    flow::Flow,
    level::Made,
    sequence,
    split::{self, BatchFit},
    step::Stay,
};
use troupe_base::{
    error::{Error, Result},
    request::{Answer, Credit, Part, Reply, Request, Response},
    statistics::Timing,
};

/// An iteration has its turn at the decoupled step that reads it.
pub(super) struct Turn {
    pub(super) flow: Arc<Flow>,
    /// The level that is read; responses begin iterations of the next one.
    pub(super) level: usize,
    pub(super) request: Request,
    /// Given back once the last of the responses was taken.
    pub(super) credit: Option<Arc<Credit>>,
    /// No iteration follows.
    pub(super) is_last: bool,
    /// Its inputs were there.
    pub(super) ready: Instant,
}

impl Turn {
    /// Asks the step's model, unless there is nothing to ask; says whether it did. It has waited so
    /// long for room in the window.
    pub(super) fn run(self, has_window: bool, waited: Duration) -> bool {
        let Turn { flow, level, mut request, credit, is_last, ready } = self;
        if flow.is_over() {
            return false;
        }
        let index = flow.plan.decoupled[level];
        if let Some(span) = &request.context.span {
            request.context = Arc::new(request.context.under(span.at_step(index)));
        }
        let model = flow.plan.steps[index].model.clone();
        let most = model.config.max_batch_size;
        let (fit, batch) = split::batch_fit(most, &request);
        let is_measured = !flow.context.is_warmup;
        let stay = Stay { index, ready, waited, has_window, is_measured, came: None };
        let stopped = flow.context.stopped();
        let mut told = Responses { flow, level, batch, stay, credit, is_last, failed: None };
        if let Some(error) = stopped {
            told.refuse(error);
            return false;
        }
        match fit {
            BatchFit::Fits => {
                let now = Instant::now();
                told.stay.begin(&told.flow.plan, now);
                model.infer(request, Reply::new_at(told, now));
                return true;
            }
            // No rows have no responses.
            BatchFit::Empty => told.close((Timing::default(), Instant::now())),
            BatchFit::Split => told.refuse(Error::invalid(format!(
                "a batch of {batch} rows for model '{}', which takes up to {most} rows at once; as \
                 it is decoupled, what it responds to parts of a batch cannot be put together",
                model.name()
            ))),
        }
        false
    }
}

/// Waits for the responses of a decoupled step's model.
struct Responses {
    flow: Arc<Flow>,
    level: usize,
    batch: u32,
    stay: Stay,
    credit: Option<Arc<Credit>>,
    is_last: bool,
    /// The first failure among the responses.
    failed: Option<Error>,
}

impl Responses {
    /// One more iteration, on whatever thread this is.
    fn tell(&self, Part { result, credit: own }: Part, is_last: bool, now: Instant) {
        let Responses { flow, level, batch, .. } = self;
        if result.is_ok() && flow.context.is_stopped() {
            return;
        }
        let result = result.and_then(|response| {
            let sequence = sequence::of_step(&flow.context, &response.parameters)?;
            Ok((response, sequence))
        });
        match result {
            Ok((response, sequence)) => {
                let is_reentered = flow.plan.steps[self.stay.index].is_reentered;
                let credit = together(own.filter(|_| !is_reentered), &self.credit);
                let made = Made { response, batch: *batch, sequence, credit, is_last };
                flow.add(level + 1, made);
            }
            Err(source) => {
                if let Some(tap) = &flow.tap {
                    tap.failed(self.stay.index, &source);
                }
                let error = flow.plan.at_step(self.stay.index, source, &flow.context);
                flow.fail(level + 1, error, now);
            }
        }
    }

    /// There will be no more responses to this request.
    fn close(&self, spent: (Timing, Instant)) {
        self.flow.step_ended(self.level, self.is_last, spent);
    }

    fn refuse(&self, error: Error) {
        let now = Instant::now();
        self.tell(Err(error).into(), true, now);
        self.close((Timing::default(), now));
    }

    fn note(&mut self, result: &Result<Response>) {
        self.failed = self.failed.take().or_else(|| result.as_ref().err().cloned());
    }

    fn measure(&self, timing: Option<&Timing>, now: Instant) {
        let timing = timing.filter(|_| self.failed.is_none());
        self.stay.end(&self.flow.plan, timing, now);
        self.stay.tell(&self.flow.plan, self.failed.as_ref(), now);
    }
}

impl Answer for Responses {
    fn answer(mut self: Box<Self>, result: Result<Response>, now: Instant) {
        self.note(&result);
        let timing = result.as_ref().ok().map(|it| it.timing);
        self.measure(timing.as_ref(), now);
        self.tell(result.into(), self.is_last, now);
        self.stay.leave(&self.flow.team);
        self.close((timing.unwrap_or_default(), now));
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn part(&mut self, part: Part, now: Instant) {
        self.note(&part.result);
        self.tell(part, false, now);
    }

    fn end(self: Box<Self>, timing: Timing, now: Instant) {
        self.measure(Some(&timing), now);
        self.stay.leave(&self.flow.team);
        self.close((timing, now));
    }
}

/// Gives both back once the last response was taken.
fn together(own: Option<Arc<Credit>>, turns: &Option<Arc<Credit>>) -> Option<Arc<Credit>> {
    let Some(turns) = turns.clone() else { return own };
    let Some(own) = own else { return Some(turns) };
    Some(Credit::new(move || drop((own, turns))))
}
