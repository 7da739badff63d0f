//! Business logic calls: models that call, load and unload other models.

pub(crate) mod basics;
pub(crate) mod control;
pub(crate) mod deadlock;
mod limits;
pub(crate) mod many;
pub(crate) mod memory;
