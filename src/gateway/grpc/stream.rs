//! One `ModelStreamInfer` call: requests side by side, answers in their order.

use std::sync::Arc;

use futures_util::{
    StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream, FuturesOrdered},
};
use tokio::sync::watch;
use tonic::{Status, Streaming};

use super::{
    infer::infer,
    parameters,
    refusal::{refuse, shutting_down},
};
use crate::{
    error::{Error, Result},
    gateway::Gate,
    proto::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse},
    request::Parameter,
};

/// Requests of one stream in flight; beyond them the stream is not read.
const MAX_IN_FLIGHT: usize = 256;

/// How a stream begins.
pub(super) struct Opening {
    /// The server.
    pub(super) gate: Arc<Gate>,
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
    let call = Call { opening, in_flight: FuturesOrdered::new(), reading: Reading::Open };
    stream::unfold(call, next).boxed()
}

struct Call {
    opening: Opening,
    in_flight: FuturesOrdered<BoxFuture<'static, Answered>>,
    reading: Reading,
}

struct Answered {
    id: String,
    result: Result<ModelInferResponse>,
}

/// What the client still sends.
enum Reading {
    Open,
    /// No more; once all is answered, the call ends like this.
    Closed(Option<Status>),
}

/// The next answer, or how the call ends.
async fn next(mut call: Call) -> Option<(Result<ModelStreamInferResponse, Status>, Call)> {
    loop {
        let is_open = matches!(call.reading, Reading::Open);
        let Opening { gate, requests, stopping, ends_on_error } = &mut call.opening;
        tokio::select! {
            biased;
            message = requests.next(), if is_open && call.in_flight.len() < MAX_IN_FLIGHT => {
                match message {
                    Some(Ok(message)) => call.in_flight.push_back(answer(gate.clone(), message)),
                    Some(Err(status)) => call.reading = Reading::Closed(Some(status)),
                    None => call.reading = Reading::Closed(None),
                }
            }
            Some(answered) = call.in_flight.next() => {
                let item = match answered {
                    Answered { result: Err(error), .. } if *ends_on_error => {
                        call.reading = Reading::Closed(None);
                        call.in_flight.clear();
                        Err(refuse(error))
                    }
                    answered => Ok(message(answered)),
                };
                return Some((item, call));
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

fn answer(gate: Arc<Gate>, message: ModelInferRequest) -> BoxFuture<'static, Answered> {
    let id = message.id.clone();
    Box::pin(async move { Answered { id, result: infer(&gate, message).await } })
}

/// Non-decoupled models answer once, so every answer is the last of its request.
fn message(answered: Answered) -> ModelStreamInferResponse {
    let Answered { id, result } = answered;
    let of_error = |error: Error| {
        (error.to_string(), ModelInferResponse { id, ..ModelInferResponse::default() })
    };
    let (error_message, mut response) = match result {
        Ok(response) => (String::new(), response),
        Err(error) => of_error(error),
    };
    let last = parameters::one(Parameter::Bool(true));
    response.parameters.insert("triton_final_response".to_owned(), last);
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}
