//! Which requests run together in one execution.

pub(crate) mod dynamic;
pub(crate) mod ragged;
