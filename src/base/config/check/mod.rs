//! Checks a complete draft; one file for each part of a configuration.

mod batch_io;
mod ensemble;
mod flow;
mod instances;
mod metrics;
mod model;
mod refused;
mod report;
mod response_cache;
mod scaling;
mod scheduling;
mod sequence;
mod sequence_state;
mod tensors;
mod warmup;

pub(super) use self::model::check;
pub use self::{
    model::stays_in_model,
    response_cache::{Uncacheable, uncacheable},
    scheduling::warnings as scheduling_warnings,
};
