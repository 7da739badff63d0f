//! One `ModelStreamInfer` call: requests side by side, single answers in their order.

use std::sync::Arc;

use futures_util::{
    FutureExt, StreamExt,
    future::{self, BoxFuture},
    stream::{self, BoxStream, FuturesOrdered, FuturesUnordered},
};
use tokio::sync::watch;
use tonic::{Code, Status, Streaming, metadata::MetadataMap};

use super::{
    access, convert,
    infer::{find, once},
    parameters,
    refusal::{code, refuse, shutting_down},
    traced::{self, Traced},
};
use crate::{
    ServerState,
    access::Access,
    ask::{Answers, Said, ask_many},
    classify::Classes,
    lifecycle::InFlight,
};
use troupe_base::{
    error::{Error, Result},
    model::Model,
    request::{Parameter, Part, Response},
};
use troupe_proto::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

/// Requests of one stream in flight; beyond them the stream is not read.
const MAX_IN_FLIGHT: usize = 256;

/// How a stream begins.
pub(super) struct Opening {
    /// The server.
    pub(super) state: Arc<ServerState>,
    /// What came with the call.
    pub(super) metadata: MetadataMap,
    /// What the client sends.
    pub(super) requests: Streaming<ModelInferRequest>,
    /// Becomes true when the gateway stops.
    pub(super) stopping: watch::Receiver<bool>,
    /// The client asked that the first error end the stream (`triton_grpc_error`).
    pub(super) ends_on_error: bool,
}

/// Dropping the stream cancels what is in flight.
pub(super) fn answers(
    opening: Opening,
) -> BoxStream<'static, Result<ModelStreamInferResponse, Status>> {
    let call = Call { opening, asked: Asked::default(), reading: Reading::Open, sending: None };
    stream::unfold(call, next).boxed()
}

struct Call {
    opening: Opening,
    asked: Asked,
    reading: Reading,
    /// Whose answer is being sent.
    sending: Traced,
}

/// Requests in flight. Dropped, they are cancelled.
#[derive(Default)]
struct Asked {
    /// Of models that answer once: in the order of their requests.
    single: FuturesOrdered<BoxFuture<'static, Answered>>,
    /// Of decoupled models: as they come.
    many: FuturesUnordered<BoxFuture<'static, Progress>>,
}

/// What a decoupled model says, if that is not nothing, and the request unless it has ended.
type Progress = Option<(Answered, Option<Decoupled>)>;

impl Asked {
    fn len(&self) -> usize {
        self.single.len() + self.many.len()
    }

    /// The next answer, or `Some(None)` when a request ended without one. Neither kind keeps the
    /// other waiting. `None` when nothing is in flight.
    async fn next(&mut self) -> Option<Option<Answered>> {
        tokio::select! {
            Some(answered) = self.single.next() => Some(Some(answered)),
            Some(said) = self.many.next() => Some(said.map(|(answered, decoupled)| {
                self.many.extend(decoupled.map(|it| it.next().boxed()));
                answered
            })),
            else => None,
        }
    }
}

struct Answered {
    id: String,
    result: Result<ModelInferResponse>,
    is_final: bool,
    traced: Traced,
}

impl Answered {
    fn refused(id: String, error: Error) -> Answered {
        Answered { id, result: Err(error), is_final: true, traced: None }
    }
}

/// What the client still sends.
enum Reading {
    Open,
    /// No more; once all is answered, the call ends like this.
    Closed(Option<Status>),
}

impl Call {
    fn start(&mut self, message: ModelInferRequest) {
        let id = message.id.clone();
        let state = &self.opening.state;
        let mut access = access::begin(state, &message);
        let found = find(state, &message).map(|(in_flight, model)| {
            let traced = traced::begin(state, &model, (&self.opening.metadata, None));
            (in_flight, model, traced)
        });
        match found {
            Ok((in_flight, model, traced)) if model.config.decoupled => {
                let held = (in_flight, access, traced);
                self.asked.many.push(match Decoupled::start(held, model, message) {
                    Ok(decoupled) => decoupled.next().boxed(),
                    Err(error) => future::ready(Some((Answered::refused(id, error), None))).boxed(),
                });
            }
            found => self.asked.single.push_back(Box::pin(async move {
                let (result, traced) = match found {
                    Ok((_in_flight, model, traced)) => {
                        (once(&model, message, (&mut access, &traced)).await, traced)
                    }
                    Err(error) => (Err(error), None),
                };
                access::ended(&mut access, &result);
                Answered { id, result, is_final: true, traced }
            })),
        }
    }

    /// The item of an answer; an error may be the end of the call.
    fn item(&mut self, mut answered: Answered) -> Result<ModelStreamInferResponse, Status> {
        self.sending = answered.traced.take();
        traced::mark(&self.sending, "GRPC_SEND_START");
        if let Err(error) = &answered.result {
            traced::refused(&self.sending, error);
        }
        match answered {
            Answered { result: Err(error), .. } if self.opening.ends_on_error => {
                self.reading = Reading::Closed(None);
                self.asked = Asked::default();
                Err(refuse(error))
            }
            answered => Ok(message(answered)),
        }
    }
}

/// The next answer, or how the call ends.
async fn next(mut call: Call) -> Option<(Result<ModelStreamInferResponse, Status>, Call)> {
    // Whoever asks for the next one has sent the one before.
    traced::mark(&call.sending.take(), "GRPC_SEND_END");
    loop {
        let is_open = matches!(call.reading, Reading::Open);
        let has_room = call.asked.len() < MAX_IN_FLIGHT;
        let Opening { requests, stopping, .. } = &mut call.opening;
        tokio::select! {
            biased;
            message = requests.next(), if is_open && has_room => {
                match message {
                    Some(Ok(message)) => call.start(message),
                    Some(Err(status)) => call.reading = Reading::Closed(Some(status)),
                    None => call.reading = Reading::Closed(None),
                }
            }
            Some(answered) = call.asked.next() => {
                // One less in flight, or an answer.
                if let Some(answered) = answered {
                    return Some((call.item(answered), call));
                }
            }
            _ = stopping.changed(), if is_open => {
                call.reading = Reading::Closed(Some(refuse(shutting_down())));
            }
            else => break,
        }
    }
    match std::mem::replace(&mut call.reading, Reading::Closed(None)) {
        Reading::Closed(Some(status)) => Some((Err(status), call)),
        _ => None,
    }
}

/// A request to a decoupled model, for as long as it answers. Dropped before, it is cancelled.
struct Decoupled {
    answers: Answers,
    model: Arc<Model>,
    classes: Classes,
    id: String,
    wants_empty_final: bool,
    access: Access,
    traced: Traced,
    _guard: InFlight,
}

impl Decoupled {
    fn start(
        (guard, mut access, traced): (InFlight, Access, Traced),
        model: Arc<Model>,
        message: ModelInferRequest,
    ) -> Result<Decoupled> {
        let id = message.id.clone();
        let wants_empty_final = parameters::wants_empty_final(&message.parameters);
        let read = convert::request(message, &model.config);
        let (mut request, classes) = read.inspect_err(|error| {
            access.ended(code(error) as u16);
            traced::refused(&traced, error);
        })?;
        access.works(&model, &traced, &mut request);
        let answers = ask_many(model.clone(), request, traced.clone());
        let _guard = guard;
        Ok(Decoupled { answers, model, classes, id, wants_empty_final, access, traced, _guard })
    }

    async fn next(mut self) -> Progress {
        let (Part { result, credit }, is_final) = match self.answers.next().await? {
            Said::Part(part) => (part, false),
            Said::Last(result) => (result.into(), true),
            Said::Refused(error) => (Err(error).into(), true),
            Said::End if self.wants_empty_final => (Ok(Response::default()).into(), true),
            Said::End => {
                self.access.ended(Code::Ok as u16);
                return None;
            }
        };
        let result = match result {
            Ok(response) => self.classes.clone().apply(&self.model, response).await,
            Err(error) => Err(error),
        };
        let id = self.id.clone();
        let result = result.map(|it| convert::response(&self.model, id.clone(), it));
        match is_final {
            true => access::ended(&mut self.access, &result),
            false => access::answered(&mut self.access, &result),
        }
        // Its bytes are about to be written.
        drop(credit);
        let traced = self.traced.clone();
        Some((Answered { id, result, is_final, traced }, (!is_final).then_some(self)))
    }
}

fn message(answered: Answered) -> ModelStreamInferResponse {
    let Answered { id, result, is_final, .. } = answered;
    let of_error = |error: Error| {
        let parameters = parameters::of_error(&error);
        let response = ModelInferResponse { id, parameters, ..ModelInferResponse::default() };
        (error.to_string(), response)
    };
    let (error_message, mut response) = match result {
        Ok(response) => (String::new(), response),
        Err(error) => of_error(error),
    };
    let last = parameters::one(Parameter::Bool(is_final));
    response.parameters.insert("triton_final_response".to_owned(), last);
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn single_answers_do_not_keep_decoupled_ones_waiting() {
        let answered = |id: &str| Answered::refused(id.to_owned(), Error::cancelled());
        let mut asked = Asked::default();
        for _ in 0..200 {
            asked.single.push_back(future::ready(answered("single")).boxed());
        }
        asked.many.push(future::ready(Some((answered("decoupled"), None))).boxed());
        let mut ids = Vec::new();
        while let Some(Some(answered)) = asked.next().await {
            ids.push(answered.id);
        }
        assert_eq!(ids.len(), 201);
        assert_ne!(ids[200], "decoupled");
    }
}
