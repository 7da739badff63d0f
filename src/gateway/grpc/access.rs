//! What the access log says of a request over gRPC.

use prost::Message;
use tonic::Code;

use super::refusal::code;
use crate::{ServerState, access::Access};
use troupe_base::{error::Result, model::parse_version};
use troupe_proto::inference::{ModelInferRequest, ModelInferResponse};

/// A request has come.
pub(super) fn begin(state: &ServerState, message: &ModelInferRequest) -> Access {
    let mut access = Access::begin(state, "grpc", Code::Cancelled as u16);
    if access.is_on() {
        access.asked(&message.model_name, parse_version(&message.model_version).ok().flatten());
        access.received(message.encoded_len());
    }
    access
}

/// A response, or a failure instead.
pub(super) fn answered(access: &mut Access, result: &Result<ModelInferResponse>) {
    match result {
        _ if !access.is_on() => (),
        Ok(response) => access.sent(response.encoded_len()),
        Err(error) => access.sent(error.to_string().len()),
    }
}

/// The last response, or the failure of the request.
pub(super) fn ended(access: &mut Access, result: &Result<ModelInferResponse>) {
    answered(access, result);
    access.ended(result.as_ref().err().map_or(Code::Ok, code) as u16);
}
