//! One `ModelStreamInfer` call: requests side by side, single answers in their order.

use std::sync::Arc;

use futures_util::{
    FutureExt, StreamExt,
    future::{self, BoxFuture},
    stream::{self, BoxStream, FuturesOrdered, FuturesUnordered},
};
use tokio::sync::watch;
use tonic::{Code, Status};

use super::{
    convert,
    infer::{once, prepare, run},
    message::InferMessage,
    observe::{self, CallHead},
    parameters,
    refusal::{code, refuse, shutting_down},
};
use crate::{
    ServerState,
    inference::{Admitted, Answers, InferParams, Observed, RequestTrace, StreamEvent},
    shared_memory::RegionAccess,
};
use troupe_base::{
    error::{Error, Result},
    request::{Parameter, Part, Response},
};
use troupe_proto::inference::{ModelInferResponse, ModelStreamInferResponse};

/// Requests of one stream in flight; beyond them the stream is not read.
const MAX_IN_FLIGHT: usize = 256;

/// How a stream begins.
pub(super) struct StreamStart {
    /// The server.
    pub(super) state: Arc<ServerState>,
    /// What came with the call.
    pub(super) head: CallHead,
    /// What the client sends.
    pub(super) requests: BoxStream<'static, Result<InferMessage, Status>>,
    /// Becomes true when the gateway stops.
    pub(super) stopping: watch::Receiver<bool>,
    /// The client asked that the first error end the stream (`triton_grpc_error`).
    pub(super) ends_on_error: bool,
}

/// Dropping the stream cancels what is in flight.
pub(super) fn answers(
    start: StreamStart,
) -> BoxStream<'static, Result<ModelStreamInferResponse, Status>> {
    let call = StreamCall {
        start,
        in_flight: InFlightRequests::default(),
        input: StreamInput::Open,
        sending: None,
    };
    stream::unfold(call, next).boxed()
}

struct StreamCall {
    start: StreamStart,
    in_flight: InFlightRequests,
    input: StreamInput,
    /// Whose answer is being sent.
    sending: Option<RequestTrace>,
}

/// Requests in flight. Dropped, they are cancelled.
#[derive(Default)]
struct InFlightRequests {
    /// Of models that answer once: in the order of their requests.
    single: FuturesOrdered<BoxFuture<'static, StreamAnswer>>,
    /// Of decoupled models: as they come.
    many: FuturesUnordered<BoxFuture<'static, Progress>>,
}

/// The next answer of a decoupled model, if there is one, and the request unless it has ended.
type Progress = Option<(StreamAnswer, Option<DecoupledRequest>)>;

impl InFlightRequests {
    fn len(&self) -> usize {
        self.single.len() + self.many.len()
    }

    /// The next answer, or `Some(None)` when a request ended without one. Neither kind keeps the
    /// other waiting. `None` when nothing is in flight.
    async fn next(&mut self) -> Option<Option<StreamAnswer>> {
        tokio::select! {
            Some(answered) = self.single.next() => Some(Some(answered)),
            Some(progress) = self.many.next() => Some(progress.map(|(answered, decoupled)| {
                self.many.extend(decoupled.map(|it| it.next().boxed()));
                answered
            })),
            else => None,
        }
    }
}

struct StreamAnswer {
    id: String,
    result: Result<ModelInferResponse>,
    is_final: bool,
    trace: Option<RequestTrace>,
}

impl StreamAnswer {
    fn refused(id: String, error: Error) -> StreamAnswer {
        StreamAnswer { id, result: Err(error), is_final: true, trace: None }
    }

    /// The only answer of a request.
    fn only(
        id: String,
        result: Result<ModelInferResponse>,
        mut observed: Observed,
    ) -> StreamAnswer {
        observe::finish(&mut observed, &result);
        let trace = Some(observed.trace.take());
        StreamAnswer { id, result, is_final: true, trace }
    }
}

/// What the client still sends.
enum StreamInput {
    Open,
    /// No more; once all is answered, the call ends like this.
    Closed(Option<Status>),
}

impl StreamCall {
    async fn begin(&mut self, mut message: InferMessage) {
        let id = str::to_owned(&message.id);
        let state = &self.start.state;
        let mut observed = observe::begin(state, &message);
        let admitted = observe::admit(&observed, state, &mut message).and_then(|admitted| {
            let regions = prepare(&mut observed, state, &self.start.head, &admitted.model)?;
            Ok((admitted, regions))
        });
        match admitted {
            Ok((admitted, regions)) if admitted.model.config.decoupled => {
                // Requests begin in the order they came, but for those that take long to decode; of
                // sequences those, too.
                let config = &admitted.model.config;
                let progress = if admitted.model.has_sequences() {
                    let message = Arc::new(message);
                    let (read, model) = (message.clone(), &admitted.model);
                    let params = convert::request_off_thread(read, model, None, regions).await;
                    DecoupledRequest::begin(admitted, &message, params, observed)
                } else if convert::is_long(&message, config, &regions) {
                    DecoupledRequest::begin_off_thread(admitted, message, regions, observed).boxed()
                } else {
                    let params = convert::request(&message, config, None, &regions);
                    DecoupledRequest::begin(admitted, &message, params, observed)
                };
                self.in_flight.many.push(progress);
            }
            Ok((admitted, regions)) if admitted.model.has_sequences() => {
                let model = &admitted.model;
                let params = convert::request_off_thread(message, model, None, regions).await;
                self.in_flight.single.push_back(Box::pin(async move {
                    let result = run(&admitted, params, &mut observed).await;
                    StreamAnswer::only(id, result, observed)
                }));
            }
            admitted => self.in_flight.single.push_back(Box::pin(async move {
                let result = match admitted {
                    Ok((admitted, regions)) => {
                        once(&admitted, message, None, regions, &mut observed).await
                    }
                    Err(error) => Err(error),
                };
                StreamAnswer::only(id, result, observed)
            })),
        }
    }

    /// The item of an answer; an error may be the end of the call.
    fn item(&mut self, mut answered: StreamAnswer) -> Result<ModelStreamInferResponse, Status> {
        self.sending = answered.trace.take();
        if let Some(trace) = &self.sending {
            trace.send_started();
            if let Err(error) = &answered.result {
                trace.fail(error);
            }
        }
        match answered {
            StreamAnswer { result: Err(error), .. } if self.start.ends_on_error => {
                self.input = StreamInput::Closed(None);
                self.in_flight = InFlightRequests::default();
                Err(refuse(error))
            }
            answered => Ok(message(answered)),
        }
    }
}

/// The next answer, or how the call ends.
async fn next(
    mut call: StreamCall,
) -> Option<(Result<ModelStreamInferResponse, Status>, StreamCall)> {
    // Whoever asks for the next one has sent the one before.
    if let Some(trace) = call.sending.take() {
        trace.send_ended();
    }
    loop {
        let is_open = matches!(call.input, StreamInput::Open);
        let has_room = call.in_flight.len() < MAX_IN_FLIGHT;
        let StreamStart { requests, stopping, .. } = &mut call.start;
        tokio::select! {
            biased;
            message = requests.next(), if is_open && has_room => {
                match message {
                    Some(Ok(message)) => call.begin(message).await,
                    Some(Err(status)) => call.input = StreamInput::Closed(Some(status)),
                    None => call.input = StreamInput::Closed(None),
                }
            }
            Some(answered) = call.in_flight.next() => {
                // One less in flight, or an answer.
                if let Some(answered) = answered {
                    return Some((call.item(answered), call));
                }
            }
            _ = stopping.changed(), if is_open => {
                call.input = StreamInput::Closed(Some(refuse(shutting_down())));
            }
            else => break,
        }
    }
    match std::mem::replace(&mut call.input, StreamInput::Closed(None)) {
        StreamInput::Closed(Some(status)) => Some((Err(status), call)),
        _ => None,
    }
}

/// A request to a decoupled model, for as long as it answers. Dropped before, it is cancelled.
struct DecoupledRequest {
    answers: Answers,
    id: String,
    wants_empty_final: bool,
    observed: Observed,
}

impl DecoupledRequest {
    /// Its first answer.
    fn begin(
        admitted: Admitted,
        message: &InferMessage,
        params: Result<InferParams>,
        mut observed: Observed,
    ) -> BoxFuture<'static, Progress> {
        let id = str::to_owned(&message.id);
        let begun = admitted.noted(params.and_then(|params| {
            let wants_empty_final = parameters::wants_empty_final(&message.parameters()?);
            Ok((params, wants_empty_final))
        }));
        match begun {
            Ok((params, wants_empty_final)) => {
                let answers = admitted.stream(params, &mut observed);
                DecoupledRequest { answers, id, wants_empty_final, observed }.next().boxed()
            }
            Err(error) => {
                observed.line.ended(code(&error) as u16);
                observed.trace.fail(&error);
                future::ready(Some((StreamAnswer::refused(id, error), None))).boxed()
            }
        }
    }

    /// The same for a message that takes long to decode.
    async fn begin_off_thread(
        admitted: Admitted,
        message: InferMessage,
        regions: RegionAccess,
        observed: Observed,
    ) -> Progress {
        let message = Arc::new(message);
        let (read, model) = (message.clone(), &admitted.model);
        let params = convert::request_off_thread(read, model, None, regions).await;
        DecoupledRequest::begin(admitted, &message, params, observed).await
    }

    async fn next(mut self) -> Progress {
        let (Part { result, credit }, is_final) = match self.answers.next(&self.observed).await? {
            StreamEvent::Part(part) => (part, false),
            StreamEvent::Last(result) => (result.into(), true),
            StreamEvent::Refused(error) => (Err(error).into(), true),
            StreamEvent::End if self.wants_empty_final => (Ok(Response::default()).into(), true),
            StreamEvent::End => {
                self.observed.line.ended(Code::Ok as u16);
                return None;
            }
        };
        let id = self.id.clone();
        let (model, deliveries) = (self.answers.model(), self.answers.deliveries());
        let encode = |response| convert::response(model, id.clone(), response, deliveries);
        let result = result.map(encode);
        match is_final {
            true => observe::finish(&mut self.observed, &result),
            false => observe::answered(&mut self.observed, &result),
        }
        // Its bytes are about to be written.
        drop(credit);
        let trace = Some(self.observed.trace.clone());
        let answered = StreamAnswer { id, result, is_final, trace };
        Some((answered, (!is_final).then_some(self)))
    }
}

fn message(answered: StreamAnswer) -> ModelStreamInferResponse {
    let StreamAnswer { id, result, is_final, .. } = answered;
    let of_error = |error: Error| {
        let parameters = parameters::of_error(&error);
        let response = ModelInferResponse { id, parameters, ..ModelInferResponse::default() };
        (error.to_string(), response)
    };
    let (error_message, mut response) = match result {
        Ok(response) => (String::new(), response),
        Err(error) => of_error(error),
    };
    let last = Parameter::Bool(is_final).into();
    response.parameters.insert("triton_final_response".to_owned(), last);
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn single_answers_do_not_keep_decoupled_ones_waiting() {
        let answered = |id: &str| StreamAnswer::refused(id.to_owned(), Error::cancelled());
        let mut in_flight = InFlightRequests::default();
        for _ in 0..200 {
            in_flight.single.push_back(future::ready(answered("single")).boxed());
        }
        in_flight.many.push(future::ready(Some((answered("decoupled"), None))).boxed());
        let mut ids = Vec::new();
        while let Some(Some(answered)) = in_flight.next().await {
            ids.push(answered.id);
        }
        assert_eq!(ids.len(), 201);
        assert_ne!(ids[200], "decoupled");
    }
}
