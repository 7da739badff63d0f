//! Asks a model and waits; a caller that goes away meanwhile cancels the request.

use std::{sync::Arc, time::Instant};

use tokio::sync::mpsc;

use crate::{
    error::{Error, Result},
    model::Model,
    request::{Answer, Context, Part, Reply, Request, Response},
    statistics::Timing,
};

/// The model's answer. Dropping the future before the answer cancels the request.
pub async fn ask(model: &Model, request: Request) -> Result<Response> {
    let (reply, answer) = Reply::channel();
    let mut caller = Caller { context: Some(request.context.clone()) };
    model.infer(request, reply);
    let result = answer.await;
    caller.context = None;
    result.unwrap_or_else(|_| Err(Error::internal("the request was lost")))
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
pub fn ask_many(model: Arc<Model>, request: Request) -> Answers {
    // Bounded by the credit of whoever makes the responses.
    let (sender, said) = mpsc::unbounded_channel();
    let caller = Caller { context: Some(request.context.clone()) };
    model.infer(request, Reply::new(Many(sender)));
    Answers { said, caller, _model: model }
}

/// What a model says, one by one. Dropping it before the end cancels the request.
pub struct Answers {
    said: mpsc::UnboundedReceiver<Said>,
    caller: Caller,
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
        Some(said)
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
