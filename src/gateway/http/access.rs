//! What the access log says of a request over HTTP.

use actix_web::{
    HttpRequest, HttpResponse, ResponseError,
    body::{BodySize, MessageBody},
    http::header::CONTENT_LENGTH,
};

use super::{
    refusal::Refusal,
    server_state::{model_and_version, state},
};
use crate::access::Access;

/// What other servers write of clients that do not wait for their answer.
const GONE: u16 = 499;

/// A request has come.
pub(super) fn begin(http: &HttpRequest) -> Access {
    let Ok(state) = state(http) else { return Access::off() };
    let mut access = Access::begin(state, "http", GONE);
    if access.is_on() {
        let path = http.match_info();
        access.asked(path.query("model"), model_and_version(http).ok().and_then(|it| it.1));
    }
    access
}

/// Its body has so many bytes once inflated; on their way they were as many as were announced.
pub(super) fn received(access: &mut Access, http: &HttpRequest, body: usize) {
    if access.is_on() {
        let length = http.headers().get(CONTENT_LENGTH);
        access.received(length.and_then(|it| it.to_str().ok()?.parse().ok()).unwrap_or(body));
    }
}

/// It is answered.
pub(super) fn ended(access: &mut Access, result: &Result<HttpResponse, Refusal>) {
    match result {
        _ if !access.is_on() => (),
        Ok(response) => {
            access.sent(size(response));
            access.ended(response.status().as_u16());
        }
        Err(refusal) => {
            access.sent(size(&refusal.error_response()));
            access.ended(refusal.status_code().as_u16());
        }
    }
}

fn size(response: &HttpResponse) -> usize {
    match response.body().size() {
        BodySize::Sized(size) => size as usize,
        BodySize::None | BodySize::Stream => 0,
    }
}
