//! Models that answer any number of times, alone and as steps of ensembles.

pub(crate) mod ahead;
pub(crate) mod ensembles;
pub(crate) mod models;
pub(crate) mod windows;
