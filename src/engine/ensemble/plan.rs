//! Graph to plan: names become slot numbers once, at load, so running a request hashes nothing.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use petgraph::algo::toposort;

use super::graph::Graph;
use troupe_base::{
    config::{EnsembleConfig, ModelConfig},
    error::{Error, StepError},
    metrics::{EnsembleMetrics, StepMetrics, activity::EnsembleActivity},
    model::Model,
    request::{Context, Wanted},
    tap::Taps,
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
    /// Decoupled steps in the order they run: each reads what follows from the one before.
    pub(super) decoupled: Vec<usize>,
    /// What happens right now.
    pub(super) live: Arc<EnsembleActivity>,
    /// Where its tensors can be captured.
    pub(super) taps: Taps,
    /// Steps so that producers come before consumers.
    order: Vec<usize>,
    /// What runs when all outputs are asked for: one route up to each decoupled step, and one from
    /// the last of them to the outputs.
    whole: Vec<Route>,
    pub(super) metrics: EnsembleMetrics,
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
    /// Its responses are iterations.
    pub(super) is_decoupled: bool,
    /// Its model runs again on its own responses: if it had to wait until they are taken, it might
    /// wait for itself.
    pub(super) is_reentered: bool,
    /// How many decoupled steps are behind it.
    level: usize,
    /// Steps of its level that must finish first.
    waits_for: u16,
    /// Steps that wait for this one.
    pub(super) unblocks: Vec<usize>,
    pub(super) metrics: StepMetrics,
}

/// The steps of one level that a set of requested outputs needs, and the counters a run starts with.
#[derive(Clone)]
pub(super) struct Route {
    /// Which steps run.
    pub(super) live: Arc<[bool]>,
    /// How many run, a decoupled one at the end included.
    pub(super) steps: usize,
    /// For each step, how many steps must finish first; then for each slot, how many readers are
    /// still to come (the last one takes the tensor, earlier ones share it).
    pub(super) counters: Vec<u16>,
}

impl Plan {
    pub(super) fn new(
        config: Arc<ModelConfig>,
        ensemble: &EnsembleConfig,
        (metrics, models): (EnsembleMetrics, Vec<(Arc<Model>, StepMetrics)>),
        (graph, levels): (&Graph, &[usize]),
    ) -> Plan {
        let mut slots = SlotTable::default();
        let inputs = config.inputs.iter().map(|it| slots.of(&it.name)).collect();
        let outputs = config.outputs.iter().map(|it| slots.of(&it.name)).collect();
        let is_decoupled: Vec<bool> = models.iter().map(|(it, _)| it.config.decoupled).collect();
        let reentered = reentered(&models, levels);
        let steps = ensemble.steps.iter().zip(models).zip(graph.node_indices());
        let steps: Vec<PlannedStep> = steps
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
                // What a decoupled step made is there when its iteration begins.
                let of_level = |it: &&usize| !is_decoupled[**it];
                PlannedStep {
                    wanted: wanted(&model.config, &writes),
                    is_decoupled: model.config.decoupled,
                    is_reentered: reentered[graph[node]],
                    level: levels[graph[node]],
                    waits_for: neighbours(petgraph::Incoming).iter().filter(of_level).count()
                        as u16,
                    unblocks: neighbours(petgraph::Outgoing),
                    inputs: reads,
                    outputs: writes,
                    model,
                    metrics,
                }
            })
            .collect();
        let order = toposort(graph, None).unwrap_or_default();
        let order: Vec<usize> = order.into_iter().map(|node| graph[node]).collect();
        let decoupled = order.iter().copied().filter(|it| steps[*it].is_decoupled).collect();
        let taps = Taps::new(slots.names());
        let live = Arc::new(EnsembleActivity::new(steps.len(), slots.by_name));
        let (slots, whole) = (live.tensors(), Vec::new());
        let mut plan = Plan {
            config,
            steps,
            inputs,
            outputs,
            slots,
            decoupled,
            live,
            taps,
            order,
            whole,
            metrics,
        };
        plan.whole = plan.trace(&Wanted::All);
        plan
    }

    /// What to run for these outputs, one route for each level.
    pub(super) fn routes(&self, wanted: &Wanted) -> Cow<'_, [Route]> {
        match wanted {
            Wanted::All => Cow::Borrowed(&self.whole),
            some => Cow::Owned(self.trace(some)),
        }
    }

    /// Walks from the wanted outputs back: a step runs when somebody who runs reads one of its
    /// tensors.
    fn trace(&self, wanted: &Wanted) -> Vec<Route> {
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
        let counters: Vec<u16> = self.steps.iter().map(|it| it.waits_for).chain(readers).collect();
        let of_level = |level| {
            let runs = |(index, step): (usize, &PlannedStep)| live[index] && step.level == level;
            let live: Arc<[bool]> = self.steps.iter().enumerate().map(runs).collect();
            let steps = live.iter().filter(|it| **it).count();
            Route { live, steps, counters: counters.clone() }
        };
        (0..=self.decoupled.len()).map(of_level).collect()
    }

    /// The step that makes what lies in a slot, and which of its outputs that is; `None` for what
    /// the client sent.
    pub(super) fn maker(&self, slot: Slot) -> Option<(usize, usize)> {
        self.steps.iter().enumerate().find_map(|(index, step)| {
            let written = step.outputs.iter().find(|(_, it)| *it == slot)?;
            Some((index, written.0))
        })
    }

    /// Says where an error happened, and to whose request.
    pub(super) fn at_step(&self, index: usize, source: Error, context: &Context) -> Error {
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

fn wanted(model: &ModelConfig, writes: &[(usize, Slot)]) -> Wanted {
    if writes.len() == model.outputs.len() {
        return Wanted::All;
    }
    Wanted::Only(writes.iter().map(|(output, _)| *output as u16).collect())
}

/// For each decoupled step, does a later one run the same model, by itself or within an ensemble?
fn reentered(models: &[(Arc<Model>, StepMetrics)], levels: &[usize]) -> Vec<bool> {
    fn collect(model: &Arc<Model>, all: &mut HashSet<*const Model>) {
        if all.insert(Arc::as_ptr(model)) {
            model.steps.iter().for_each(|it| collect(it, all));
        }
    }
    let all = |models: &mut dyn Iterator<Item = &Arc<Model>>| {
        let mut all = HashSet::new();
        models.for_each(|it| collect(it, &mut all));
        all
    };
    let is_reentered = |((model, _), level): (&(Arc<Model>, StepMetrics), &usize)| {
        let later = models.iter().zip(levels).filter(|(_, it)| level < *it);
        let later = all(&mut later.map(|((it, _), _)| it));
        model.config.decoupled && !later.is_disjoint(&all(&mut [model].into_iter()))
    };
    models.iter().zip(levels).map(is_reentered).collect()
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

    /// The names, by slot.
    fn names(&self) -> Vec<Arc<str>> {
        let mut all: Vec<_> = self.by_name.iter().collect();
        all.sort_unstable_by_key(|(_, slot)| **slot);
        all.into_iter().map(|(name, _)| name.as_str().into()).collect()
    }
}
