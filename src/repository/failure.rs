//! Why a model cannot be served, as the index and clients are told.

use troupe_base::{
    config::{Problem, join_messages, meant_backend},
    error::Error,
};

/// The reason of versions that were taken out on purpose; readiness and clients look for it.
pub const UNLOADED: &str = "unloaded";

/// How the reason begins of a model without a version to load.
pub(super) const NO_VERSION: &str = "at least one version must be available";

/// Why a model cannot be served.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LoadFailure {
    /// In no repository.
    Missing,
    /// In several repositories.
    Duplicate,
    /// Its config cannot be used.
    Unreadable(Vec<Problem>),
    /// An ensemble that cannot be made of its steps.
    Invalid(String),
    /// Ensembles that serve could not be made with it.
    Unfit(String),
    /// The config or the files of the load request cannot be used.
    Refused(String),
    /// It did not come up.
    NotLoaded(String),
}

impl LoadFailure {
    /// What the index shows.
    pub(super) fn reason(&self) -> String {
        match self {
            LoadFailure::Missing => "model is not found in any repository".to_owned(),
            LoadFailure::Duplicate => "model appears in two or more repositories".to_owned(),
            LoadFailure::Unreadable(problems) => join_messages(problems),
            LoadFailure::Invalid(text)
            | LoadFailure::Unfit(text)
            | LoadFailure::Refused(text)
            | LoadFailure::NotLoaded(text) => text.clone(),
        }
    }
}

/// Triton's text for a backend that does not exist, and the names of those that do.
pub(crate) fn unknown_backend(name: &str) -> Error {
    let known: Vec<_> = troupe_backends::names().collect();
    let hint = match meant_backend(name) {
        Some(meant) if known.contains(&meant) => format!(". Did you mean `{meant}`?"),
        Some("pytorch" | "tensorflow") => {
            ". Export the model to ONNX, or load it in a model.py (backend \"python\")".to_owned()
        }
        _ => String::new(),
    };
    Error::invalid(format!(
        "unable to find backend library for backend '{name}', try specifying runtime on the model \
         configuration. troupe has: {}{hint}",
        known.join(", ")
    ))
}
