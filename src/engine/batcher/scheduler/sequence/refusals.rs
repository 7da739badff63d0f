//! Why a request of a sequence is refused, in Triton's words.

use troupe_base::{
    error::{Error, Result},
    request::{Context, Correlation, Request, SEQUENCE_START},
};

/// Refuses what no sequence can have. Refusals count as no failures of the model.
pub(super) fn check(model: &str, request: &Request) -> Result<()> {
    if 1 < request.batch {
        return Err(Error::invalid(format!(
            "inference request to model '{model}' must specify batch-size 1 due to requirements of \
             sequence batcher"
        )));
    }
    if request.context.correlation == Correlation::None {
        return Err(Error::invalid(format!(
            "inference request to model '{model}' must specify a non-zero or non-empty correlation \
             ID"
        )));
    }
    Ok(())
}

/// The id is not known, and the request does not begin a sequence.
pub(super) fn not_started(model: &str, id: &Correlation) -> Error {
    Error::invalid(format!(
        "inference request for sequence {} to model '{model}' must specify the START flag on the \
         first request of the sequence",
        id_text(id)
    ))
}

/// A request without an id, which nobody can join, was given this one.
pub(super) fn in_use(model: &str, id: &Correlation) -> Error {
    Error::unavailable(format!(
        "sequence {} of model '{model}' is that of a request without an id, until it is answered. \
         Begin with another id",
        id_text(id)
    ))
}

/// A request of a sequence without a slot has waited for longer than its `timeout`.
pub(super) fn expired() -> Error {
    Error::unavailable("timeout of the corresponding sequence has been expired")
}

/// There are as many sequences as there may be.
pub(super) fn too_many(model: &str, most: usize) -> Error {
    Error::unavailable(format!(
        "model '{model}' has {most} sequences, and none more until one of them ends"
    ))
}

/// What the model knew of the sequence is gone with its instance.
pub(super) fn lost(model: &str, context: &Context) -> Error {
    let id = id_text(&context.correlation);
    Error::crashed(format!(
        "sequence {id} of model '{model}' is lost: the instance that it was told to has ended. \
         Begin it anew"
    ))
}

/// Logs that a sequence begins again before it has ended.
pub(super) fn warn_of_conflict(model: &str, id: &Correlation) {
    tracing::warn!(
        "sequence {} for model '{model}' has a conflict. The previous sequence did not end before \
         this sequence start. Previous sequence will be terminated early.",
        id_text(id)
    );
}

/// Does the request begin a sequence?
pub(super) fn begins(request: &Request) -> bool {
    request.context.flags & SEQUENCE_START != 0
}

fn id_text(id: &Correlation) -> String {
    match id {
        Correlation::None => "0".to_owned(),
        Correlation::Number(number) => number.to_string(),
        Correlation::Text(text) => text.clone(),
    }
}
