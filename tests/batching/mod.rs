//! Which requests run together in one execution.

pub(crate) mod autoscaling;
pub(crate) mod dynamic;
pub(crate) mod implicit_state;
pub(crate) mod iterative;
pub(crate) mod priorities;
pub(crate) mod ragged;
pub(crate) mod rate_limits;
pub(crate) mod scaling;
pub(crate) mod sequences;
