//! The one table from error kinds to the codes of the two protocols.

use troupe_base::error::ErrorKind;

/// How the protocols say that a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status.
    pub http: u16,
    /// gRPC status code.
    pub grpc: i32,
}

/// The kind as `google.rpc.ErrorInfo` names reasons.
pub fn reason(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unknown => "UNKNOWN",
        ErrorKind::Internal => "INTERNAL",
        ErrorKind::NotFound => "NOT_FOUND",
        ErrorKind::InvalidArg => "INVALID_ARG",
        ErrorKind::Unavailable | ErrorKind::Crashed => "UNAVAILABLE",
        ErrorKind::Unsupported => "UNSUPPORTED",
        ErrorKind::AlreadyExists => "ALREADY_EXISTS",
        ErrorKind::Cancelled => "CANCELLED",
        ErrorKind::DeadlineExceeded => "DEADLINE_EXCEEDED",
        ErrorKind::ResourceExhausted => "RESOURCE_EXHAUSTED",
        ErrorKind::TooLarge => "TOO_LARGE",
    }
}

/// Triton's codes for a kind of error.
pub fn status(kind: ErrorKind) -> Status {
    let (http, grpc) = match kind {
        ErrorKind::Unknown => (400, 2),
        ErrorKind::Internal => (500, 13),
        ErrorKind::NotFound => (404, 5),
        ErrorKind::InvalidArg => (400, 3),
        ErrorKind::Unavailable | ErrorKind::Crashed => (503, 14),
        ErrorKind::Unsupported => (501, 12),
        ErrorKind::AlreadyExists => (400, 6),
        ErrorKind::Cancelled => (400, 1),
        ErrorKind::DeadlineExceeded => (504, 4),
        ErrorKind::ResourceExhausted | ErrorKind::TooLarge => (503, 8),
    };
    Status { http, grpc }
}
