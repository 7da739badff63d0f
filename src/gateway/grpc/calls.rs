//! `ModelInfer` and `ModelStreamInfer` as they come from a connection: the head of the call, the
//! body with its messages, and the response.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use tonic::{
    Status,
    body::Body,
    codegen::http::{Request, Response},
    metadata::MetadataMap,
};

use super::{
    infer,
    message::{Arriving, InferMessages, Pauses, answer, coding_of, compression_of, open_charge},
    observe::{CallHead, CallTimes},
    refusal::refuse,
    service::Inference,
    stream::{StreamStart, answers},
};
use crate::ServerState;

/// Calls of one server, with the most bytes a message may have.
#[derive(Clone)]
pub(super) struct InferCalls {
    /// Of the same server.
    pub(super) inference: Arc<Inference>,
    /// Inflated.
    pub(super) limit: usize,
}

impl InferCalls {
    /// One request, one answer. Dropping the future before the answer cancels the request.
    pub(super) async fn unary(
        self,
        call: Request<Body>,
        times: CallTimes,
        pauses: Pauses,
    ) -> Response<Body> {
        self.answer(call, times, pauses).await.unwrap_or_else(Status::into_http)
    }

    async fn answer(
        self,
        call: Request<Body>,
        times: CallTimes,
        pauses: Pauses,
    ) -> Result<Response<Body>, Status> {
        let compression = compression_of(&call, self.inference.state.settings.grpc.compression);
        let (metadata, messages) = self.messages(call, pauses)?;
        let message = messages.only().await?;
        let head = CallHead::of_one(metadata, times);
        let charge = message.charge.clone();
        let (response, trace) =
            infer::infer(&self.inference.state, head, message).await.map_err(refuse)?;
        trace.send_started();
        let sending = trace.sending();
        match compression {
            None => answer::unary(response, charge, sending),
            Some(level) => answer::unary_compressed(response, level, charge, sending).await,
        }
    }

    /// Any number of requests and answers, until either side ends the call.
    pub(super) fn streaming(self, call: Request<Body>, pauses: Pauses) -> Response<Body> {
        self.stream(call, pauses).unwrap_or_else(Status::into_http)
    }

    fn stream(self, call: Request<Body>, pauses: Pauses) -> Result<Response<Body>, Status> {
        self.inference.admit().map_err(refuse)?;
        let (metadata, messages) = self.messages(call, pauses)?;
        let ends_on_error =
            metadata.get("triton_grpc_error").is_some_and(|it| it.as_bytes() == b"true");
        let requests = stream::unfold(messages, |mut messages| async move {
            let message = messages.next().await.transpose()?;
            Some((message, messages))
        });
        Ok(answer::streaming(answers(StreamStart {
            state: self.inference.state.clone(),
            head: CallHead::of_stream(metadata),
            requests: requests.boxed(),
            stopping: self.inference.stopping.clone(),
            ends_on_error,
        })))
    }

    fn messages(
        &self,
        call: Request<Body>,
        pauses: Pauses,
    ) -> Result<(MetadataMap, InferMessages<Arc<ServerState>>), Status> {
        let (head, body) = call.into_parts();
        let coding = coding_of(&head.headers)?;
        let connection = head.extensions.get().cloned();
        let charge = open_charge(connection.as_ref()).map_err(refuse)?;
        let messages = InferMessages {
            place: self.inference.state.clone(),
            arriving: Arriving::new(body, pauses, &charge),
            charge,
            connection,
            coding,
            limit: self.limit,
        };
        Ok((MetadataMap::from_headers(head.headers), messages))
    }
}
