//! Graph to plan: names become slot numbers once, at load, so running a request hashes nothing.

use std::{collections::HashMap, sync::Arc};

use petgraph::algo::toposort;

use super::graph::Graph;
use crate::{
    config::{EnsembleConfig, ModelConfig},
    metrics::StepMetrics,
    model::Model,
    request::Wanted,
};

/// Where an ensemble tensor lies while a request runs.
pub(super) type Slot = usize;

/// Everything about an ensemble that does not change from request to request.
pub(super) struct Plan {
    pub(super) config: Arc<ModelConfig>,
    pub(super) steps: Vec<PlannedStep>,
    /// The slot of each input of the config.
    pub(super) inputs: Vec<Slot>,
    /// The slot of each output of the config.
    pub(super) outputs: Vec<Slot>,
    pub(super) slots: usize,
    /// Steps so that producers come before consumers.
    order: Vec<usize>,
    /// What runs when all outputs are asked for.
    whole: Route,
}

/// One step, its names resolved.
pub(super) struct PlannedStep {
    pub(super) model: Arc<Model>,
    /// For each input of the model, the slot it reads.
    pub(super) inputs: Vec<Option<Slot>>,
    /// Outputs of the model, and the slot each writes.
    pub(super) outputs: Vec<(usize, Slot)>,
    /// The mapped outputs.
    pub(super) wanted: Wanted,
    /// Steps that must finish first.
    waits_for: u16,
    /// Steps that wait for this one.
    pub(super) unblocks: Vec<usize>,
    pub(super) metrics: StepMetrics,
}

/// The steps that a set of requested outputs needs, and the counters a run starts with.
#[derive(Clone)]
pub(super) struct Route {
    /// Which steps run.
    pub(super) live: Arc<[bool]>,
    /// How many run.
    pub(super) steps: usize,
    /// For each step, how many steps must finish first; then for each slot, how many readers are
    /// still to come (the last one takes the tensor, earlier ones share it).
    pub(super) counters: Vec<u16>,
}

impl Plan {
    pub(super) fn new(
        config: Arc<ModelConfig>,
        ensemble: &EnsembleConfig,
        models: Vec<(Arc<Model>, StepMetrics)>,
        graph: &Graph,
    ) -> Plan {
        let mut slots = SlotTable::default();
        let inputs = config.inputs.iter().map(|it| slots.of(&it.name)).collect();
        let outputs = config.outputs.iter().map(|it| slots.of(&it.name)).collect();
        let steps = ensemble.steps.iter().zip(models).zip(graph.node_indices());
        let steps = steps
            .map(|((step, (model, metrics)), node)| {
                let mut reads = vec![None; model.config.inputs.len()];
                for (input, tensor) in &step.inputs {
                    if let Some(index) = model.config.input_index(input) {
                        reads[index] = Some(slots.of(tensor));
                    }
                }
                let index = |name: &str| model.config.output_index(name);
                let writes: Vec<(usize, Slot)> = step
                    .outputs
                    .iter()
                    .filter_map(|(output, tensor)| Some((index(output)?, slots.of(tensor))))
                    .collect();
                let neighbours = |direction| {
                    let mut all: Vec<usize> =
                        graph.neighbors_directed(node, direction).map(|it| graph[it]).collect();
                    all.sort_unstable();
                    all.dedup();
                    all
                };
                PlannedStep {
                    wanted: wanted(&model.config, &writes),
                    waits_for: neighbours(petgraph::Incoming).len() as u16,
                    unblocks: neighbours(petgraph::Outgoing),
                    inputs: reads,
                    outputs: writes,
                    model,
                    metrics,
                }
            })
            .collect();
        let order = toposort(graph, None).unwrap_or_default();
        let order = order.into_iter().map(|node| graph[node]).collect();
        let whole = Route { live: Arc::default(), steps: 0, counters: Vec::new() };
        let slots = slots.by_name.len();
        let mut plan = Plan { config, steps, inputs, outputs, slots, order, whole };
        plan.whole = plan.trace(&Wanted::All);
        plan
    }

    /// What to run for these outputs.
    pub(super) fn route(&self, wanted: &Wanted) -> std::borrow::Cow<'_, Route> {
        match wanted {
            Wanted::All => std::borrow::Cow::Borrowed(&self.whole),
            some => std::borrow::Cow::Owned(self.trace(some)),
        }
    }

    /// Walks from the wanted outputs back: a step runs when somebody who runs reads one of its
    /// tensors.
    fn trace(&self, wanted: &Wanted) -> Route {
        let mut readers = vec![0u16; self.slots];
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
        let steps = live.iter().filter(|it| **it).count();
        let counters = self.steps.iter().map(|it| it.waits_for).chain(readers).collect();
        Route { live: live.into(), steps, counters }
    }
}

fn wanted(model: &ModelConfig, writes: &[(usize, Slot)]) -> Wanted {
    if writes.len() == model.outputs.len() {
        return Wanted::All;
    }
    Wanted::Only(writes.iter().map(|(output, _)| *output as u16).collect())
}

#[derive(Default)]
struct SlotTable {
    by_name: HashMap<String, Slot>,
}

impl SlotTable {
    fn of(&mut self, tensor: &str) -> Slot {
        let next = self.by_name.len();
        *self.by_name.entry(tensor.to_owned()).or_insert(next)
    }
}
