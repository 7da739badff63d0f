//! Which requests run together in one execution.

pub(crate) mod dynamic;
pub(crate) mod priorities;
pub(crate) mod ragged;
pub(crate) mod rate_limits;
pub(crate) mod sequences;
