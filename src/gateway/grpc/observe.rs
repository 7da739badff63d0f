//! What the access log and the trace have of an inference over gRPC: its sizes, its code, its end.

use std::time::Instant;

use prost::Message;
use tonic::{Code, metadata::MetadataMap};

use super::{
    message::InferMessage,
    refusal::{SHUTTING_DOWN, code},
};
use crate::{
    ServerState,
    inference::{Admitted, Observed, Protocol, joined},
};
use troupe_base::{
    error::Result,
    model::{Model, parse_version},
};
use troupe_proto::inference::ModelInferResponse;

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
}

impl CallHead {
    /// Of a call with one request.
    pub(super) fn of_one(metadata: MetadataMap, times: CallTimes) -> CallHead {
        CallHead { metadata, times }
    }

    /// Of a stream of requests: they come later, and the deadline is that of its first response.
    pub(super) fn of_stream(metadata: MetadataMap) -> CallHead {
        CallHead { metadata, times: CallTimes::default() }
    }
}

/// A request has come.
pub(super) fn begin(state: &ServerState, message: &InferMessage) -> Observed {
    let mut observed = Observed::begin(state, &GRPC);
    if observed.line.is_on() {
        let version = parse_version(&message.model_version).ok().flatten();
        observed.line.names(&message.model_name, version);
        observed.line.received(message.size);
    }
    observed
}

/// Takes the request on for the model that it names, unless there was no room for it.
pub(super) fn admit(
    observed: &Observed,
    state: &ServerState,
    message: &mut InferMessage,
) -> Result<Admitted> {
    // Even its model's name may be missing.
    if let Some(refusal) = message.refusal.take() {
        return Err(refusal);
    }
    observed.admit(state, &message.model_name, &message.model_version)
}

/// Takes the metadata that is to become parameters; what is the protocol's own is none.
pub(super) fn forward(observed: &mut Observed, state: &ServerState, head: &CallHead) -> Result<()> {
    let is_own = |name: &str| name.starts_with("grpc-") || ["te", "content-type"].contains(&name);
    let headers = head.metadata.as_ref().iter().map(|it| (it.0.as_str(), it.1.as_bytes()));
    observed.forward(&state.settings.grpc_forwarding, headers.filter(|it| !is_own(it.0)))
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
