//! What the access log and the trace have of an inference over HTTP: its sizes, its status, its
//! end.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use actix_web::{
    HttpRequest, HttpResponse, ResponseError,
    body::{BodySize, BoxBody, MessageBody},
    http::header::CONTENT_LENGTH,
};
use bytes::Bytes;

use super::{
    refusal::Refusal,
    server_state::{model_and_version, state},
};
use crate::{
    ServerState,
    inference::{Admitted, Observed, Protocol, RequestTrace, Sending, joined},
};
use troupe_base::{
    error::{Error, Result},
    model::Model,
};

const HTTP: Protocol = Protocol {
    name: "http",
    // What other servers write of clients that do not wait for their answer.
    status_of_gone: 499,
    exiting: None,
    receive_start: "HTTP_RECV_START",
    receive_end: "HTTP_RECV_END",
    send_start: "HTTP_SEND_START",
    send_end: "HTTP_SEND_END",
};

/// A request has come.
pub(super) fn begin(http: &HttpRequest) -> Observed {
    let Ok(state) = state(http) else { return Observed::nothing(&HTTP) };
    let mut observed = Observed::begin(state, &HTTP);
    if observed.line.is_on() {
        let version = model_and_version(http).ok().and_then(|(_, version)| version);
        observed.line.names(http.match_info().query("model"), version);
    }
    observed
}

/// Takes the request on for the model that its path names.
pub(super) fn admit(
    observed: &Observed,
    state: &ServerState,
    http: &HttpRequest,
) -> Result<Admitted> {
    let path = http.match_info();
    observed.admit(state, path.query("model"), path.query("version"))
}

/// Takes the headers that are to become parameters.
pub(super) fn forward(
    observed: &mut Observed,
    state: &ServerState,
    http: &HttpRequest,
) -> Result<()> {
    let headers = http.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    observed.forward(&state.settings.http_forwarding, headers)
}

/// Traces the request, of which the head has come, if it is to be traced.
pub(super) fn sample(
    observed: &mut Observed,
    state: &ServerState,
    model: &Model,
    http: &HttpRequest,
) {
    let values = |name: &str| joined(http.headers().get_all(name).map(|value| value.to_str().ok()));
    observed.sample(state, model, &values, None);
}

/// Its body has so many bytes once inflated; on their way they were as many as were announced.
pub(super) fn received(observed: &mut Observed, http: &HttpRequest, body: usize) {
    if observed.line.is_on() {
        let length = http.headers().get(CONTENT_LENGTH);
        let announced = length.and_then(|value| value.to_str().ok()?.parse().ok());
        observed.line.received(announced.unwrap_or(body));
    }
    observed.trace.received();
}

/// The same result, noted; the trace ends once the response is sent.
pub(super) fn finish(
    observed: &mut Observed,
    result: Result<HttpResponse, Refusal>,
) -> Result<HttpResponse, Refusal> {
    let trace = observed.trace.take();
    match result {
        Ok(response) => {
            if observed.line.is_on() {
                observed.line.sent(size(&response));
                observed.line.ended(response.status().as_u16());
            }
            Ok(sending(trace, response))
        }
        Err(refusal) => {
            if observed.line.is_on() {
                observed.line.sent(size(&refusal.error_response()));
                observed.line.ended(refusal.status_code().as_u16());
            }
            if trace.is_on() {
                trace.fail(&match &refusal {
                    Refusal::Error(error) => error.clone(),
                    other => Error::invalid(other.to_string()),
                });
            }
            Err(refusal)
        }
    }
}

/// The same response; the trace ends once it is sent.
pub(super) fn sending(trace: RequestTrace, response: HttpResponse) -> HttpResponse {
    match trace.sending() {
        Some(sending) => {
            response.map_body(|_, body| BoxBody::new(TracedHttpBody { body, _sending: sending }))
        }
        None => response,
    }
}

fn size(response: &HttpResponse) -> usize {
    match response.body().size() {
        BodySize::Sized(bytes) => bytes as usize,
        BodySize::None | BodySize::Stream => 0,
    }
}

struct TracedHttpBody {
    body: BoxBody,
    _sending: Sending,
}

impl MessageBody for TracedHttpBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}
