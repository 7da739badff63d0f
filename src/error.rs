//! Why a request was not answered. Cloneable: one failed batch answers many requests.

use std::{fmt, sync::Arc};

/// Result with this crate's request error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Triton's status codes: all a client can tell apart. Gateways map these, never `Error` itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Anything unclassified.
    Unknown,
    /// The model or the server failed.
    Internal,
    /// No such model, version or region.
    NotFound,
    /// The request is wrong.
    InvalidArg,
    /// Not now: full, stopping, not ready.
    Unavailable,
    /// Not built, or not allowed for this model.
    Unsupported,
    /// Registered before.
    AlreadyExists,
    /// The caller has gone, or a sibling step failed.
    Cancelled,
}

/// One failure, with its kind and its text; steps of ensembles add where they stood.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// A failure in its own words.
    Plain {
        /// What gateways turn into a status code.
        kind: ErrorKind,
        /// Triton's text where it has one.
        text: Arc<str>,
    },
    /// A failure of an ensemble's step.
    Step(Arc<StepError>),
}

/// Where in an ensemble a failure happened.
#[derive(Debug, PartialEq)]
pub struct StepError {
    /// The ensemble's name.
    pub ensemble: Arc<str>,
    /// 0-based position in the config.
    pub step: usize,
    /// The step's model.
    pub model: Arc<str>,
    /// The version that ran.
    pub version: i64,
    /// What the step said.
    pub source: Error,
}

impl Error {
    /// An error of `kind` that reads `text`.
    pub fn new(kind: ErrorKind, text: impl Into<Arc<str>>) -> Error {
        Error::Plain { kind, text: text.into() }
    }
    /// The request is wrong.
    pub fn invalid(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::InvalidArg, text)
    }
    /// The model or the server failed.
    pub fn internal(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::Internal, text)
    }
    /// No such thing.
    pub fn not_found(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::NotFound, text)
    }
    /// Not now.
    pub fn unavailable(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::Unavailable, text)
    }
    /// Not built, or not for this model.
    pub fn unsupported(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::Unsupported, text)
    }
    /// The caller has gone.
    pub fn cancelled() -> Error {
        Error::new(ErrorKind::Cancelled, "request has been cancelled")
    }

    /// What gateways turn into a status code.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Plain { kind, .. } => *kind,
            Error::Step(at) => at.source.kind(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Plain { text, .. } => f.write_str(text),
            Error::Step(at) => write!(
                f,
                "in ensemble '{}', step {} (model '{}' version {}): {}",
                at.ensemble, at.step, at.model, at.version, at.source
            ),
        }
    }
}

impl std::error::Error for Error {}
