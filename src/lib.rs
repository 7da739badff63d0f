//! troupe: a model server for ensembles.

pub mod config;
pub mod tensor;

pub mod proto;
