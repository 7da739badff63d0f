//! Asks a model and waits; a caller that goes away meanwhile cancels the request.

use std::{sync::Arc, time::Instant};

use tokio::sync::mpsc;

use super::watch::Watch;
use troupe_base::{
    error::{Error, Result},
    model::Model,
    request::{Answer, Context, Part, Reply, Request, Response},
    statistics::Timing,
    trace::TraceRecord,
};

/// The model's answer. Dropping the future before the answer cancels the request.
pub async fn ask(
    model: &Model,
    mut request: Request,
    traced: Option<Arc<TraceRecord>>,
) -> Result<Response> {
    let (reply, answer) = Reply::channel();
    let watch = Watch::begin(&mut request, traced);
    let mut caller = Caller { context: Some(request.context.clone()) };
    model.infer(request, reply);
    let result = answer.await;
    caller.context = None;
    watch.answered();
    let result = result.unwrap_or_else(|_| Err(Error::internal("the request was lost")));
    result.map(|it| watch.tell(it))
}

/// One thing a model says to a caller that takes any number of responses.
#[derive(Debug)]
pub enum Said {
    /// A response, or the failure of one; there is more to come.
    Part(Part),
    /// The last response, or the failure of the request.
    Last(Result<Response>),
    /// The request is wrong: no work on it has begun, and there is nothing else.
    Refused(Error),
    /// There is no response, or none after the last `Part`.
    End,
}

/// Starts the request and returns at once; `Answers::next` waits.
pub fn ask_many(
    model: Arc<Model>,
    mut request: Request,
    traced: Option<Arc<TraceRecord>>,
) -> Answers {
    // Bounded by the credit of whoever makes the responses.
    let (sender, said) = mpsc::unbounded_channel();
    let watch = Watch::begin(&mut request, traced);
    let caller = Caller { context: Some(request.context.clone()) };
    model.infer(request, Reply::new(Many(sender)));
    Answers { said, caller, watch, _model: model }
}

/// What a model says, one by one. Dropping it before the end cancels the request.
pub struct Answers {
    said: mpsc::UnboundedReceiver<Said>,
    caller: Caller,
    watch: Watch,
    /// Kept running until the end.
    _model: Arc<Model>,
}

impl Answers {
    /// The next; `None` after all but `Part`.
    pub async fn next(&mut self) -> Option<Said> {
        self.caller.context.as_ref()?;
        let lost = || Said::Last(Err(Error::internal("the request was lost")));
        let said = self.said.recv().await.unwrap_or_else(lost);
        if !matches!(said, Said::Part(_)) {
            self.caller.context = None;
        }
        self.watch.answered();
        Some(match said {
            Said::Part(part) => {
                let result = part.result.map(|it| self.watch.tell(it));
                Said::Part(Part { result, ..part })
            }
            Said::Last(Ok(response)) => Said::Last(Ok(self.watch.tell(response))),
            said => said,
        })
    }
}

struct Many(mpsc::UnboundedSender<Said>);

impl Answer for Many {
    fn answer(self: Box<Self>, result: Result<Response>, _: Instant) {
        // The gateway may have gone; then nobody misses the answer.
        let _ = self.0.send(Said::Last(result));
    }

    fn refuse(self: Box<Self>, error: Error, _: Instant) {
        let _ = self.0.send(Said::Refused(error));
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn part(&mut self, part: Part, _: Instant) {
        let _ = self.0.send(Said::Part(part));
    }

    fn end(self: Box<Self>, _: Timing, _: Instant) {
        let _ = self.0.send(Said::End);
    }
}

/// Whoever waits; dropped while waiting, it cancels.
struct Caller {
    context: Option<Arc<Context>>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(context) = &self.context {
            context.cancel();
        }
    }
}
