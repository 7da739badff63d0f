//! Error responses of HTTP: a status and `{"error": …}`, with the place beside it where there is
//! one.

use std::fmt;

use actix_web::{
    HttpResponse, HttpResponseBuilder, ResponseError,
    http::{StatusCode, header},
};

use super::draining::Undrained;
use crate::{error_details, pace::Slow, status::status};
use troupe_base::error::{Error, ErrorKind};

/// When a client may try again that was refused for want of memory.
const RETRY_AFTER_SECS: u32 = 1;

/// Why a request is not answered with what it asked.
#[derive(Debug)]
pub(super) enum Refusal {
    /// One of the errors all protocols share.
    Error(Error),
    /// A `Content-Encoding` nobody here can read.
    Coding,
    /// The body comes in so many pieces that the rest is not read.
    Chunks,
    /// The process is about to end.
    Exiting,
    /// The body does not go on, or too slowly.
    Slow(Slow),
    /// One of the others, of a request whose body has not come to its end.
    Undrained(Box<Refusal>, Undrained),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Error(error)
    }
}

impl Refusal {
    fn text(&self) -> String {
        match self {
            Refusal::Error(error) => error.to_string(),
            Refusal::Coding => "Unsupported compression type".to_owned(),
            Refusal::Chunks => "Chunked request body exceeds maximum of 65536 non-empty chunks. \
                                Send fewer or larger HTTP chunks."
                .to_owned(),
            Refusal::Exiting => "Server exiting".to_owned(),
            Refusal::Slow(slow) => {
                format!("the request's body came too slowly{}", slow.reason())
            }
            Refusal::Undrained(refusal, _) => refusal.text(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        let code = match self {
            Refusal::Error(error) => status(error.kind()).http,
            Refusal::Coding => 501,
            Refusal::Chunks => 400,
            Refusal::Exiting => 503,
            Refusal::Slow(_) => 408,
            Refusal::Undrained(refusal, _) => return refusal.status_code(),
        };
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        if let Refusal::Undrained(refusal, rest) = self {
            return rest.read_during(refusal.error_response());
        }
        let mut response = HttpResponse::build(self.status_code());
        if matches!(self, Refusal::Coding) {
            response.insert_header((header::ACCEPT_ENCODING, "gzip, deflate"));
        }
        if matches!(self, Refusal::Error(error) if error.kind() == ErrorKind::ResourceExhausted) {
            response.insert_header((header::RETRY_AFTER, RETRY_AFTER_SECS));
        }
        if matches!(self, Refusal::Chunks | Refusal::Slow(_)) {
            response.force_close();
        }
        response.content_type("application/json").body(match self {
            Refusal::Error(error) => error_body(error),
            _ => error_json(&self.text()),
        })
    }
}

/// `{"error": …}`, and `"troupe": {…}` that names the step of an ensemble.
pub(super) fn error_body(error: &Error) -> String {
    let mut body = error_json(&error.to_string());
    if let Some(place) = error_details::of(error)
        && let Ok(place) = serde_json::to_string(&place)
    {
        body.truncate(body.len() - 1);
        body.push_str(",\"troupe\":");
        body.push_str(&place);
        body.push('}');
    }
    body
}

/// `{"error": …}`.
fn error_json(text: &str) -> String {
    let text = serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned());
    format!("{{\"error\":{text}}}")
}

/// No such path; the hint, if there is one, begins with what separates it.
pub(super) fn not_found(hint: &str) -> HttpResponse {
    refused(&mut HttpResponse::NotFound(), "Not Found", hint)
}

/// Triton's words first, as clients look for them.
pub(super) fn refused(answer: &mut HttpResponseBuilder, text: &str, hint: &str) -> HttpResponse {
    answer.content_type("application/json").body(error_json(&format!("{text}{hint}")))
}
