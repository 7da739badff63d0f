//! What the access log and the trace have of an inference over gRPC: its sizes, its code, its end.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use prost::Message;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        BoxFuture,
        http::{Extensions, Response},
    },
    metadata::MetadataMap,
};

use super::refusal::{SHUTTING_DOWN, code};
use crate::{
    ServerState,
    connections::Connection,
    inference::{Admitted, Observed, Protocol, RequestTrace, Sending, joined},
};
use troupe_base::{
    budget::Charge,
    error::Result,
    model::{Model, parse_version},
};
use troupe_proto::inference::{ModelInferRequest, ModelInferResponse};

const GRPC: Protocol = Protocol {
    name: "grpc",
    status_of_gone: Code::Cancelled as u16,
    exiting: Some(SHUTTING_DOWN),
    receive_start: "GRPC_WAITREAD_START",
    receive_end: "GRPC_WAITREAD_END",
    send_start: "GRPC_SEND_START",
    send_end: "GRPC_SEND_END",
};

/// What is known of a call before its message is read.
#[derive(Clone, Copy, Default)]
pub(super) struct CallTimes {
    /// When it came, if somebody looked.
    pub(super) arrived: Option<Instant>,
    /// When the client stops waiting for a single response.
    pub(super) deadline: Option<Instant>,
}

/// What came before the message.
pub(super) struct CallHead {
    metadata: MetadataMap,
    pub(super) times: CallTimes,
    connection: Option<Arc<Connection>>,
}

impl CallHead {
    /// Of a call with one request.
    pub(super) fn of_one(metadata: MetadataMap, extensions: &Extensions) -> CallHead {
        let times = extensions.get::<CallTimes>().copied().unwrap_or_default();
        CallHead { metadata, times, connection: extensions.get().cloned() }
    }

    /// Of a stream of requests: they come later, and the deadline is that of its first response.
    pub(super) fn of_stream(metadata: MetadataMap, extensions: &Extensions) -> CallHead {
        let times = CallTimes::default();
        CallHead { metadata, times, connection: extensions.get().cloned() }
    }

    /// Begins to count the memory of a request; RESOURCE_EXHAUSTED if there is none for it.
    pub(super) fn charge(&self) -> Result<Charge> {
        self.connection.as_ref().map_or_else(|| Ok(Charge::default()), |it| it.charge())
    }
}

/// A request has come.
pub(super) fn begin(state: &ServerState, message: &ModelInferRequest) -> Observed {
    let mut observed = Observed::begin(state, &GRPC);
    if observed.line.is_on() {
        let version = parse_version(&message.model_version).ok().flatten();
        observed.line.names(&message.model_name, version);
        observed.line.received(message.encoded_len());
    }
    observed
}

/// Takes the request on for the model that it names.
pub(super) fn admit(
    observed: &Observed,
    state: &ServerState,
    message: &ModelInferRequest,
) -> Result<Admitted> {
    observed.admit(state, &message.model_name, &message.model_version)
}

/// Traces the request, of which all has come, if it is to be traced.
pub(super) fn sample(observed: &mut Observed, state: &ServerState, model: &Model, head: &CallHead) {
    let values =
        |name: &str| joined(head.metadata.get_all(name).iter().map(|value| value.to_str().ok()));
    observed.sample(state, model, &values, head.times.arrived);
    observed.trace.received();
}

/// A response, or a failure instead.
pub(super) fn answered(observed: &mut Observed, result: &Result<ModelInferResponse>) {
    match result {
        _ if !observed.line.is_on() => (),
        Ok(response) => observed.line.sent(response.encoded_len()),
        Err(error) => observed.line.sent(error.to_string().len()),
    }
}

/// The last response, or the failure of the request.
pub(super) fn finish(observed: &mut Observed, result: &Result<ModelInferResponse>) {
    answered(observed, result);
    observed.line.ended(result.as_ref().err().map_or(Code::Ok, code) as u16);
}

/// Has the trace end with the response that is made of these extensions.
pub(super) fn sending(trace: RequestTrace, extensions: &mut Extensions) {
    if trace.is_on() {
        trace.send_started();
        extensions.insert(trace);
    }
}

/// A call whose response may be that of a traced request.
pub(super) fn sent<E: Send + 'static>(
    call: BoxFuture<Response<Body>, E>,
) -> BoxFuture<Response<Body>, E> {
    Box::pin(async move {
        let mut response = call.await?;
        let sending = response.extensions_mut().remove::<RequestTrace>();
        Ok(match sending.and_then(RequestTrace::sending) {
            Some(sending) => {
                response.map(|body| Body::new(TracedGrpcBody { body, _sending: sending }))
            }
            None => response,
        })
    })
}

struct TracedGrpcBody {
    body: Body,
    _sending: Sending,
}

impl http_body::Body for TracedGrpcBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
