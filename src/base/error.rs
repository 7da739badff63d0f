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
    /// What ran the request has ended with it, or has not come up again: a worker that was killed,
    /// left or took too long.
    Crashed,
    /// Not built, or not allowed for this model.
    Unsupported,
    /// Registered before.
    AlreadyExists,
    /// The caller has gone, or a sibling step failed.
    Cancelled,
    /// The deadline that came with the request is over.
    DeadlineExceeded,
    /// Not now: the memory that requests may hold is used up.
    ResourceExhausted,
    /// Never: it needs more memory than it may ever have.
    TooLarge,
}

impl ErrorKind {
    /// Nobody waits for the answer any more: it says nothing about the model's health.
    pub fn is_abandoned(self) -> bool {
        matches!(self, ErrorKind::Cancelled | ErrorKind::DeadlineExceeded)
    }
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
        /// The instance that was at work, if one was.
        instance: Option<Arc<str>>,
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
    /// The client's id of the request, cut if it is very long; empty if it sent none.
    pub request_id: Arc<str>,
    /// What the step said.
    pub source: Error,
}

impl Error {
    /// An error of `kind` that reads `text`.
    pub fn new(kind: ErrorKind, text: impl Into<Arc<str>>) -> Error {
        Error::Plain { kind, text: text.into(), instance: None }
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
    /// What ran it has ended.
    pub fn crashed(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::Crashed, text)
    }
    /// Not now, for want of memory.
    pub fn exhausted(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::ResourceExhausted, text)
    }
    /// Never, for want of memory.
    pub fn too_large(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::TooLarge, text)
    }
    /// Not built, or not for this model.
    pub fn unsupported(text: impl Into<Arc<str>>) -> Error {
        Error::new(ErrorKind::Unsupported, text)
    }
    /// The caller has gone.
    pub fn cancelled() -> Error {
        Error::new(ErrorKind::Cancelled, "request has been cancelled")
    }
    /// The deadline that came with the request is over.
    pub fn deadline_exceeded() -> Error {
        Error::new(ErrorKind::DeadlineExceeded, "Deadline Exceeded")
    }
    /// It has waited longer than the policy of its queue lets it.
    pub fn timeout_expired() -> Error {
        Error::unavailable("Request timeout expired")
    }

    /// The same, said by an instance, unless it is known already where it comes from.
    pub fn at_instance(mut self, name: &Arc<str>) -> Error {
        if let Error::Plain { instance: instance @ None, .. } = &mut self {
            *instance = Some(name.clone());
        }
        self
    }

    /// The same with more behind its text; a failure of a step stays as it is.
    pub fn with_hint(self, hint: &str) -> Error {
        match self {
            Error::Plain { kind, text, instance } => {
                Error::Plain { kind, text: format!("{text}{hint}").into(), instance }
            }
            step @ Error::Step(_) => step,
        }
    }

    /// What gateways turn into a status code.
    pub fn kind(&self) -> ErrorKind {
        match self.innermost() {
            Error::Plain { kind, .. } => *kind,
            Error::Step(_) => ErrorKind::Internal,
        }
    }

    /// The instance that was at work when it happened, if one was.
    pub fn instance(&self) -> Option<&Arc<str>> {
        match self.innermost() {
            Error::Plain { instance, .. } => instance.as_ref(),
            Error::Step(_) => None,
        }
    }

    /// The steps it happened in, the outermost first; none outside ensembles.
    pub fn path(&self) -> impl Iterator<Item = &StepError> {
        std::iter::successors(self.step(), |at| at.source.step())
    }

    fn step(&self) -> Option<&StepError> {
        match self {
            Error::Plain { .. } => None,
            Error::Step(at) => Some(at),
        }
    }

    fn innermost(&self) -> &Error {
        self.path().last().map_or(self, |at| &at.source)
    }
}

impl StepError {
    /// What is kept of a client's id.
    pub fn request_id(id: &str) -> Arc<str> {
        match id.char_indices().nth(MAX_ID_CHARS) {
            Some((end, _)) => format!("{}…", &id[..end]).into(),
            None => id.into(),
        }
    }
}

/// Letters of a request's id that errors repeat.
const MAX_ID_CHARS: usize = 128;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = "";
        for at in self.path() {
            let StepError { ensemble, step, model, version, request_id, source } = at;
            write!(f, "in ensemble '{ensemble}', step {step} (model '{model}' version {version}")?;
            if let Error::Plain { instance: Some(instance), .. } = source {
                write!(f, ", instance '{instance}'")?;
            }
            // Inner ensembles mostly have it from the outer one.
            if **request_id != *told {
                write!(f, ", request '{request_id}'")?;
                told = request_id;
            }
            f.write_str("): ")?;
        }
        match self.innermost() {
            Error::Plain { text, .. } => f.write_str(text),
            Error::Step(_) => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: usize, request_id: &str, source: Error) -> Error {
        let name = |it: &str| -> Arc<str> { format!("{it}{step}").into() };
        let request_id = StepError::request_id(request_id);
        let (ensemble, model) = (name("e"), name("m"));
        Error::Step(Arc::new(StepError { ensemble, step, model, version: 3, request_id, source }))
    }

    #[track_caller]
    fn check(error: Error, text: &str, instance: Option<&str>) {
        assert_eq!(error.to_string(), text);
        assert_eq!(error.instance().map(|it| &**it), instance);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_text_says_what_is_known_of_every_level() {
        let full = || Error::unavailable("full");
        let by = |name: &str| full().at_instance(&name.into());
        check(full(), "full", None);
        check(by("m_0"), "full", Some("m_0"));
        check(at(1, "", full()), "in ensemble 'e1', step 1 (model 'm1' version 3): full", None);
        check(
            at(1, "", by("m_0")),
            "in ensemble 'e1', step 1 (model 'm1' version 3, instance 'm_0'): full",
            Some("m_0"),
        );
        check(
            at(0, "7", at(1, "7", by("m_0"))),
            "in ensemble 'e0', step 0 (model 'm0' version 3, request '7'): in ensemble 'e1', step 1 \
             (model 'm1' version 3, instance 'm_0'): full",
            Some("m_0"),
        );
    }

    #[test]
    fn the_first_instance_to_say_so_counts_and_steps_do_not_hide_it() {
        let error = at(0, "", Error::internal("x").at_instance(&"a".into()));
        let error = error.at_instance(&"b".into()).at_instance(&"c".into());
        assert_eq!(error.instance().map(|it| &**it), Some("a"));
        let steps: Vec<usize> = at(5, "", error).path().map(|it| it.step).collect();
        assert_eq!(steps, [5, 0]);
    }

    #[test]
    fn ids_without_end_are_cut() {
        let long = "é".repeat(MAX_ID_CHARS);
        assert_eq!(*StepError::request_id(&long), *long);
        assert_eq!(*StepError::request_id(&format!("{long}x")), *format!("{long}…"));
    }
}
