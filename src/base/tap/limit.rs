//! The bytes that all taps of a server together may hold.

use std::sync::Arc;

use crate::{
    budget::{Budget, Exceeded, Reserved},
    error::{Error, Result},
};

/// Bytes for one tap; an error while others hold too many.
pub fn reserve(budget: &Arc<Budget>, bytes: usize) -> Result<Reserved> {
    budget.reserve(bytes).map_err(|Exceeded { in_use, cap }| {
        Error::unavailable(format!(
            "other taps leave {} of the {cap} bytes that all may hold together, asked for \
             {bytes}: wait for their end, ask for less with 'max_bytes', or allow more with \
             --tap-max-bytes",
            cap - in_use
        ))
    })
}
