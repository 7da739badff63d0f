//! One step of a plan, its names resolved to slot numbers: of which kind it is, who waits for it.

use std::sync::Arc;

use super::stages::StageIndex;
use troupe_base::{metrics::StepMetrics, model::Model, request::Wanted};

/// Where an ensemble tensor lies while a request runs.
pub(crate) type SlotIndex = usize;

/// One step, its names resolved.
pub(crate) struct PlannedStep {
    pub(crate) model: Arc<Model>,
    /// For each input of the model, the slot it reads.
    pub(crate) inputs: Vec<Option<SlotIndex>>,
    /// Outputs of the model, and the slot each writes.
    pub(crate) outputs: Vec<(usize, SlotIndex)>,
    /// The mapped outputs.
    pub(crate) wanted: Wanted,
    /// How it runs.
    pub(crate) kind: StepKind,
    /// The stage it runs in: which decoupled step the tensors it reads follow from.
    pub(crate) stage: StageIndex,
    /// Steps of its stage that must finish first.
    pub(super) waits_for: u16,
    /// Steps that wait for this one.
    pub(crate) unblocks: Vec<usize>,
    pub(crate) metrics: StepMetrics,
}

/// How a step runs. Decided at load, by its config and its model's.
pub(crate) enum StepKind {
    /// Its model answers each request once. A batch that is too large for the model is split.
    Once,
    /// Its model answers any number of times, and what follows runs once for each response.
    Decoupled(DecoupledStep),
}

/// What only a decoupled step has.
pub(crate) struct DecoupledStep {
    /// The stage whose iterations its responses begin.
    pub(crate) feeds: StageIndex,
    /// Its model runs again on its own responses: if it had to wait until they are taken, it might
    /// wait for itself.
    pub(crate) is_reentered: bool,
}

impl PlannedStep {
    /// The same, if it is decoupled.
    pub(crate) fn decoupled(&self) -> Option<&DecoupledStep> {
        match &self.kind {
            StepKind::Once => None,
            StepKind::Decoupled(step) => Some(step),
        }
    }
}
