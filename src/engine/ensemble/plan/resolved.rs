//! The plan of an ensemble: names are slot numbers, so running a request hashes nothing.

use std::{borrow::Cow, sync::Arc};

use smallvec::SmallVec;

use super::{
    stages::{PlannedStage, StageEnd, StageIndex},
    steps::{PlannedStep, SlotIndex},
};
use troupe_base::{
    config::ModelConfig,
    error::{Error, StepError},
    metrics::{EnsembleMetrics, activity::EnsembleActivity},
    request::{Context, Wanted},
    tap::Taps,
};

/// Everything about an ensemble that does not change from request to request.
pub(crate) struct Plan {
    pub(crate) config: Arc<ModelConfig>,
    pub(crate) steps: Vec<PlannedStep>,
    /// The slot of each input of the config.
    pub(crate) inputs: Vec<SlotIndex>,
    /// The slot of each output of the config.
    pub(crate) outputs: Vec<SlotIndex>,
    /// A stage stands behind those it follows from.
    pub(crate) stages: Vec<PlannedStage>,
    /// How many bytes the iterations of one request may hold in each stage.
    pub(crate) window_bytes: u64,
    /// What happens right now.
    pub(crate) live: Arc<EnsembleActivity>,
    /// Where its tensors can be captured.
    pub(crate) taps: Taps,
    /// Steps so that producers come before consumers.
    pub(super) order: Vec<usize>,
    /// What runs when all outputs are asked for, one route for each stage.
    pub(super) whole: Vec<Route>,
    pub(crate) metrics: EnsembleMetrics,
}

/// The steps of one stage that a set of requested outputs needs, and what a run of them counts
/// down.
#[derive(Clone)]
pub(crate) struct Route {
    /// Which steps run.
    pub(crate) live: Arc<[bool]>,
    /// How many run, a decoupled one at the end included.
    pub(crate) steps: usize,
    /// For each step, how many steps must finish first.
    pub(crate) waits_for: SmallVec<[u16; 8]>,
    /// For each slot, how many read it; the last one takes the tensor, earlier ones share it.
    pub(crate) readers: Arc<[u16]>,
}

impl Plan {
    /// Are its answers streams of responses?
    pub(crate) fn is_decoupled(&self) -> bool {
        1 < self.stages.len()
    }

    /// What to run for these outputs, one route for each stage.
    pub(crate) fn routes(&self, wanted: &Wanted) -> Cow<'_, [Route]> {
        match wanted {
            Wanted::All => Cow::Borrowed(&self.whole),
            some => Cow::Owned(self.trace(some)),
        }
    }

    /// Walks from the wanted outputs back: a step runs when somebody who runs reads one of its
    /// tensors.
    pub(super) fn trace(&self, wanted: &Wanted) -> Vec<Route> {
        let mut readers = vec![0u16; self.live.tensors()];
        for (index, slot) in self.outputs.iter().enumerate() {
            readers[*slot] += u16::from(wanted.has(index));
        }
        let mut live = vec![false; self.steps.len()];
        for &index in self.order.iter().rev() {
            let step = &self.steps[index];
            live[index] = step.outputs.iter().any(|(_, slot)| readers[*slot] != 0);
            if live[index] {
                step.inputs.iter().flatten().for_each(|slot| readers[*slot] += 1);
            }
        }
        let readers: Arc<[u16]> = readers.into();
        let of_stage = |stage: StageIndex| {
            let steps = self.steps.iter().enumerate();
            let live: Arc<[bool]> =
                steps.map(|(index, step)| live[index] && step.stage == stage).collect();
            Route {
                steps: live.iter().filter(|is_live| **is_live).count(),
                live,
                waits_for: self.steps.iter().map(|step| step.waits_for).collect(),
                readers: readers.clone(),
            }
        };
        (0..self.stages.len()).map(of_stage).collect()
    }

    /// The decoupled step that reads what a stage ends with, and the stage its responses begin;
    /// `None` where that is for the client.
    pub(crate) fn reader(&self, stage: StageIndex) -> Option<(usize, StageIndex)> {
        match self.stages[stage].end {
            StageEnd::Client => None,
            StageEnd::Step(step) => Some((step, self.steps[step].decoupled()?.feeds)),
        }
    }

    /// The step that makes what lies in a slot, and which of its outputs that is; `None` for what
    /// the client sent.
    pub(crate) fn maker(&self, slot: SlotIndex) -> Option<(usize, usize)> {
        self.steps.iter().enumerate().find_map(|(index, step)| {
            let (output, _) = step.outputs.iter().find(|(_, written)| *written == slot)?;
            Some((index, *output))
        })
    }

    /// Says where an error happened, and to whose request.
    pub(crate) fn at_step(&self, index: usize, source: Error, context: &Context) -> Error {
        let model = &self.steps[index].model;
        Error::Step(Arc::new(StepError {
            ensemble: self.config.name.clone(),
            step: index,
            model: model.name().clone(),
            version: model.version,
            request_id: StepError::request_id(&context.id),
            source,
        }))
    }
}
