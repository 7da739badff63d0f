//! Answers requests by running other models: config → petgraph → plan → step actors.
//!
//! `plan` is made at load, `run` routes one request's tensors between the step actors, and `stream`
//! stands on both: it runs one such run for each response of a decoupled step.

mod actors;
mod plan;
mod run;
mod stream;
#[cfg(test)]
mod tests;

pub use self::{
    actors::{EnsembleSetup, start},
    plan::{build_graph, check, completed, labels, warnings},
};
