//! From an ensemble's config to its plan, at load: the graph of its steps, the checks, the numbers.

mod check;
mod compile;
mod graph;
mod labels;
mod resolved;
mod stages;
mod steps;
mod window_bytes;

pub use self::{
    check::{check, warnings},
    compile::completed,
    graph::build as build_graph,
    labels::labels,
};
pub(crate) use self::{
    compile::compile,
    resolved::{Plan, Route},
    stages::StageIndex,
    steps::{PlannedStep, SlotIndex, StepKind},
};
