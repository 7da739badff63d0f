//! Asks a model and waits; a caller that goes away meanwhile cancels the request.

use std::{sync::Arc, time::Instant};

use tokio::sync::mpsc;

use super::{delivery::Deliveries, observed::Observed};
use crate::lifecycle::InFlightGuard;
use troupe_base::{
    error::{Error, Result},
    model::Model,
    request::{Answer, CancelOnDrop, Part, Reply, Request, Response},
    statistics::Timing,
};

/// The model's only response. Dropping the future before it comes cancels the request.
pub(super) async fn only(model: &Model, request: Request) -> Result<Response> {
    let (reply, answer) = Reply::channel();
    let mut waiting = CancelOnDrop::new(request.context.clone());
    model.infer(request, reply);
    let result = answer.await;
    waiting.disarm();
    result.unwrap_or_else(|_| Err(lost()))
}

fn lost() -> Error {
    Error::internal("the request was lost")
}

/// One thing a model sends to a caller that takes any number of responses.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    /// A response, or the failure of one; there is more to come.
    Part(Part),
    /// The last response, or the failure of the request.
    Last(Result<Response>),
    /// The request is wrong: no work on it has begun, and there is nothing else.
    Refused(Error),
    /// There is no response, or none after the last `Part`.
    End,
}

/// What a model sends, event by event. Dropping it before the end cancels the request.
pub(crate) struct Answers {
    events: mpsc::UnboundedReceiver<StreamEvent>,
    waiting: CancelOnDrop,
    deliveries: Deliveries,
    /// Kept running until the end.
    model: Arc<Model>,
    _in_flight: InFlightGuard,
}

impl Answers {
    pub(super) fn begin(
        model: Arc<Model>,
        request: Request,
        deliveries: Deliveries,
        in_flight: InFlightGuard,
    ) -> Answers {
        // Bounded by the credit of whoever makes the responses.
        let (sender, events) = mpsc::unbounded_channel();
        let waiting = CancelOnDrop::new(request.context.clone());
        model.infer(request, Reply::new(EventSender(sender)));
        Answers { events, waiting, deliveries, model, _in_flight: in_flight }
    }

    /// The model that answers.
    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// How its outputs get to the client.
    pub(crate) fn deliveries(&self) -> &Deliveries {
        &self.deliveries
    }

    /// The next event, its outputs as the client wants them; `None` after all but `Part`.
    pub(crate) async fn next(&mut self, observed: &Observed) -> Option<StreamEvent> {
        if !self.waiting.is_armed() {
            return None;
        }
        let event = self.events.recv().await.unwrap_or_else(|| StreamEvent::Last(Err(lost())));
        if !matches!(event, StreamEvent::Part(_)) {
            self.waiting.disarm();
        }
        observed.answered();
        Some(match event {
            StreamEvent::Part(Part { result, credit }) => {
                let result = self.delivered(result, observed).await;
                StreamEvent::Part(Part { result, credit })
            }
            StreamEvent::Last(result) => StreamEvent::Last(self.delivered(result, observed).await),
            event => event,
        })
    }

    async fn delivered(&self, result: Result<Response>, observed: &Observed) -> Result<Response> {
        self.deliveries.apply(&self.model, observed.timed(result?)).await
    }
}

struct EventSender(mpsc::UnboundedSender<StreamEvent>);

impl Answer for EventSender {
    fn answer(self: Box<Self>, result: Result<Response>, _: Instant) {
        // The gateway may have gone; then nobody misses the answer.
        let _ = self.0.send(StreamEvent::Last(result));
    }

    fn refuse(self: Box<Self>, error: Error, _: Instant) {
        let _ = self.0.send(StreamEvent::Refused(error));
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn part(&mut self, part: Part, _: Instant) {
        let _ = self.0.send(StreamEvent::Part(part));
    }

    fn end(self: Box<Self>, _: Timing, _: Instant) {
        let _ = self.0.send(StreamEvent::End);
    }
}
