//! Compiles an ensemble's config into its plan, at load, or says all that is wrong with it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use petgraph::{Direction, algo::toposort, graph::NodeIndex};

use super::{
    check::check,
    graph::{self, Graph},
    resolved::Plan,
    stages::{StageIndex, Stages, stages},
    steps::{DecoupledStep, PlannedStep, SlotIndex, StepKind},
    window_bytes::window_bytes,
};
use troupe_base::{
    config::{EnsembleConfig, ModelConfig, Problem, StepConfig},
    metrics::{Metrics, StepMetrics, activity::EnsembleActivity},
    model::Model,
    request::Wanted,
    tap::Taps,
};

/// The plan, or every problem, one line each: Triton's text first, then where it was written.
pub(crate) fn compile(
    config: &Arc<ModelConfig>,
    ensemble: &EnsembleConfig,
    models: Vec<Arc<Model>>,
    metrics: &Metrics,
) -> Result<Plan, Vec<String>> {
    let messages =
        |problems: Vec<Problem>| -> Vec<String> { problems.iter().map(Problem::message).collect() };
    let configs: Vec<_> = models.iter().map(|model| Some(&*model.config)).collect();
    let problems = check(config, ensemble, &configs);
    if !problems.is_empty() {
        return Err(messages(problems));
    }
    let waits_for_itself = |step: usize| {
        let model = &ensemble.steps[step].model;
        vec![format!("in ensemble {}, step {step} (model {model}) waits for itself", config.name)]
    };
    let graph = graph::build(ensemble).map_err(waits_for_itself)?;
    let is_decoupled: Vec<bool> = models.iter().map(|model| model.config.decoupled).collect();
    let stages = stages(config, ensemble, &graph, &is_decoupled).map_err(messages)?;
    let window_bytes = window_bytes(config).map_err(|problem| vec![problem.message()])?;

    let mut slots = SlotTable::default();
    let inputs = config.inputs.iter().map(|input| slots.of(&input.name)).collect();
    let outputs = config.outputs.iter().map(|output| slots.of(&output.name)).collect();
    let measured = models.into_iter().enumerate().map(|(index, model)| {
        let metrics = metrics.step(&config.name, index, model.name());
        (model, metrics)
    });
    let steps = plan_steps(ensemble, measured.collect(), &graph, &stages, &mut slots);
    let order = toposort(&graph, None).unwrap_or_default();
    let taps = Taps::new(slots.names());
    let mut plan = Plan {
        config: config.clone(),
        live: Arc::new(EnsembleActivity::new(steps.len(), slots.by_name)),
        steps,
        inputs,
        outputs,
        stages: stages.all,
        window_bytes,
        taps,
        order: order.into_iter().map(|node| graph[node]).collect(),
        whole: Vec::new(),
        metrics: metrics.ensemble(&config.name),
    };
    plan.whole = plan.trace(&Wanted::All);
    Ok(plan)
}

/// The config with `decoupled` as the steps make it, whatever was written: as soon as one of them
/// is, so is the whole.
pub fn completed<'a>(
    config: &Arc<ModelConfig>,
    mut steps: impl Iterator<Item = &'a ModelConfig>,
) -> Arc<ModelConfig> {
    let decoupled = steps.any(|step| step.decoupled);
    if config.decoupled == decoupled {
        return config.clone();
    }
    Arc::new(config.with_decoupled(decoupled))
}

/// Resolves each step; `models` holds its model and where it is measured.
fn plan_steps(
    ensemble: &EnsembleConfig,
    models: Vec<(Arc<Model>, StepMetrics)>,
    graph: &Graph,
    stages: &Stages,
    slots: &mut SlotTable,
) -> Vec<PlannedStep> {
    let is_reentered = reentered(&models, &stages.of_steps);
    let is_decoupled: Vec<bool> = models.iter().map(|(model, _)| model.config.decoupled).collect();
    let mut planned = Vec::with_capacity(models.len());
    for (index, (model, metrics)) in models.into_iter().enumerate() {
        let (inputs, outputs) = resolve(&ensemble.steps[index], &model.config, slots);
        let before = neighbours(graph, index, Direction::Incoming);
        // What a decoupled step made is there when its iteration begins.
        let waits_for = before.iter().filter(|before| !is_decoupled[**before]).count();
        planned.push(PlannedStep {
            wanted: wanted(&model.config, &outputs),
            kind: kind(index, stages, is_reentered[index]),
            stage: stages.of_steps[index],
            waits_for: waits_for as u16,
            unblocks: neighbours(graph, index, Direction::Outgoing),
            inputs,
            outputs,
            model,
            metrics,
        });
    }
    planned
}

/// The slot each input of the model reads, and outputs of the model with the slot each writes.
fn resolve(
    step: &StepConfig,
    model: &ModelConfig,
    slots: &mut SlotTable,
) -> (Vec<Option<SlotIndex>>, Vec<(usize, SlotIndex)>) {
    let mut inputs = vec![None; model.inputs.len()];
    for (input, tensor) in &step.inputs {
        if let Some(index) = model.input_index(input) {
            inputs[index] = Some(slots.of(tensor));
        }
    }
    let mut outputs = Vec::with_capacity(step.outputs.len());
    for (output, tensor) in &step.outputs {
        if let Some(index) = model.output_index(output) {
            outputs.push((index, slots.of(tensor)));
        }
    }
    (inputs, outputs)
}

fn kind(step: usize, stages: &Stages, is_reentered: bool) -> StepKind {
    match stages.all.iter().position(|stage| stage.source == Some(step)) {
        Some(feeds) => StepKind::Decoupled(DecoupledStep { feeds, is_reentered }),
        None => StepKind::Once,
    }
}

/// The steps right before or behind a step. Nodes have the numbers of their steps.
fn neighbours(graph: &Graph, step: usize, direction: Direction) -> Vec<usize> {
    let around = graph.neighbors_directed(NodeIndex::new(step), direction);
    let mut steps: Vec<usize> = around.map(|node| graph[node]).collect();
    steps.sort_unstable();
    steps.dedup();
    steps
}

fn wanted(model: &ModelConfig, writes: &[(usize, SlotIndex)]) -> Wanted {
    if writes.len() == model.outputs.len() {
        return Wanted::All;
    }
    Wanted::Only(writes.iter().map(|(output, _)| *output as u16).collect())
}

/// For each decoupled step, does a step of a later stage run the same model, by itself or within an
/// ensemble?
fn reentered(models: &[(Arc<Model>, StepMetrics)], stages: &[StageIndex]) -> Vec<bool> {
    fn collect(model: &Arc<Model>, all: &mut HashSet<*const Model>) {
        if all.insert(Arc::as_ptr(model)) {
            model.steps.iter().for_each(|step| collect(step, all));
        }
    }
    let all = |models: &mut dyn Iterator<Item = &Arc<Model>>| {
        let mut all = HashSet::new();
        models.for_each(|model| collect(model, &mut all));
        all
    };
    let mut found = Vec::with_capacity(models.len());
    for ((model, _), stage) in models.iter().zip(stages) {
        let later = models.iter().zip(stages).filter(|(_, other)| stage < *other);
        let later = all(&mut later.map(|((model, _), _)| model));
        let own = all(&mut std::iter::once(model));
        found.push(model.config.decoupled && !later.is_disjoint(&own));
    }
    found
}

#[derive(Default)]
struct SlotTable {
    by_name: HashMap<String, SlotIndex>,
}

impl SlotTable {
    fn of(&mut self, tensor: &str) -> SlotIndex {
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
