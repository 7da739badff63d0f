//! The actors a request runs through: ensembles of steps, batchers of models, instances.

pub mod batcher;
pub mod ensemble;

pub mod instance;

pub mod engines;
