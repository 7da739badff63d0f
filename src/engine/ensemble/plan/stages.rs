//! Decoupled steps divide an ensemble into stages: what runs once for each of their responses.

use std::collections::HashMap;

use petgraph::algo::toposort;

use super::graph::Graph;
use troupe_base::config::{EnsembleConfig, ModelConfig, Problem};

/// The position of a stage in its plan.
pub(crate) type StageIndex = usize;

/// The stages of a plan, and which of them each step runs in.
pub(super) struct Stages {
    /// So that a stage stands behind the one its source runs in; the first begins with the client's
    /// request. That order is all that may be read out of an index: what a stage follows from, and
    /// what follows from it, is said by the stage and by the decoupled step between the two.
    pub(super) all: Vec<PlannedStage>,
    /// By position of the step.
    pub(super) of_steps: Vec<StageIndex>,
}

/// The steps that run for one response of a decoupled step, or for the client's request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedStage {
    /// The decoupled step whose responses begin its iterations; `None` where the client's request
    /// is the only one.
    pub(crate) source: Option<usize>,
    pub(crate) end: StageEnd,
}

/// What an iteration of a stage ends with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StageEnd {
    /// A response to the client.
    Client,
    /// A request to this decoupled step.
    Step(usize),
}

/// The stage of each step: the first for what follows from the client's inputs alone, and another
/// one behind each decoupled step. Or every step that reads tensors of different stages, in
/// Triton's words: their iterations would not belong together.
///
/// As every tensor is read or is an output, and all outputs are of one stage, the stages of a
/// config that passes stand in one row.
pub(super) fn stages(
    config: &ModelConfig,
    ensemble: &EnsembleConfig,
    graph: &Graph,
    is_decoupled: &[bool],
) -> Result<Stages, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut conflict = |path: &str, model: &str| {
        let text = format!(
            "in ensemble {}, step of model '{model}' receives inputs originated from different \
             decoupled models",
            config.name
        );
        problems.push(config.source_map.problem(path, text));
    };
    let mut labels: HashMap<&str, StageLabel> = HashMap::new();
    labels.extend(config.inputs.iter().map(|input| (&*input.name, StageLabel::Of(0))));
    let mut of_steps = vec![0; ensemble.steps.len()];
    let mut all = vec![PlannedStage { source: None, end: StageEnd::Client }];
    for node in toposort(graph, None).unwrap_or_default() {
        let index = graph[node];
        let step = &ensemble.steps[index];
        let inputs = step.inputs.iter();
        let mut label = common(inputs.filter_map(|(_, tensor)| labels.get(tensor.as_str())));
        match label {
            StageLabel::Of(stage) => of_steps[index] = stage,
            StageLabel::Any => (),
            StageLabel::Different => {
                conflict(&format!("ensemble_scheduling.step[{index}]"), &step.model);
                // Said once: whoever reads its outputs is not at fault.
                label = StageLabel::Any;
            }
        }
        if is_decoupled[index] {
            all[of_steps[index]].end = StageEnd::Step(index);
            label = StageLabel::Of(all.len());
            all.push(PlannedStage { source: Some(index), end: StageEnd::Client });
        }
        labels.extend(step.outputs.iter().map(|(_, tensor)| (tensor.as_str(), label)));
    }
    let outputs = config.outputs.iter().filter_map(|output| labels.get(&*output.name));
    if common(outputs) == StageLabel::Different {
        conflict("ensemble_scheduling", &config.name);
    }
    if problems.is_empty() { Ok(Stages { all, of_steps }) } else { Err(problems) }
}

/// The stage a tensor is made in.
#[derive(Clone, Copy, PartialEq)]
enum StageLabel {
    Of(StageIndex),
    /// Not known: agrees with all.
    Any,
    Different,
}

fn common<'a>(labels: impl Iterator<Item = &'a StageLabel>) -> StageLabel {
    let both = |a: StageLabel, b: &StageLabel| match (a, *b) {
        (StageLabel::Any, label) | (label, StageLabel::Any) => label,
        (a, b) if a == b => a,
        _ => StageLabel::Different,
    };
    labels.fold(StageLabel::Any, both)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ensemble::build_graph;
    use troupe_base::config::{ServerFeatures, read_text};

    /// Steps read as `model: tensor … -> tensor …`; models whose names begin with `d` are
    /// decoupled.
    fn check(steps: &[&str], expected: &[usize], stages_expected: &[(Option<usize>, StageEnd)]) {
        let of_step = |step: &&str| {
            let (model, flow) = step.split_once(": ").unwrap();
            let (reads, writes) = flow.split_once(" -> ").unwrap();
            let map = |field: &str, tensors: &str| -> String {
                let entries = tensors.split(' ').enumerate();
                let entry = |(index, tensor)| {
                    format!("{field} {{ key: '{field}{index}' value: '{tensor}' }}")
                };
                entries.map(entry).collect()
            };
            let (reads, writes) = (map("input_map", reads), map("output_map", writes));
            format!("step {{ model_name: '{model}' model_version: -1 {reads} {writes} }}")
        };
        let text = format!(
            "name: 'e' platform: 'ensemble' input {{ name: 'in' data_type: TYPE_INT32 dims: 1 }} \
             output {{ name: 'out' data_type: TYPE_INT32 dims: 1 }} ensemble_scheduling {{ {} }}",
            steps.iter().map(of_step).collect::<String>()
        );
        let config = read_text(&text, "f").unwrap().finish(&ServerFeatures::default()).unwrap();
        let ensemble = config.ensemble.as_ref().unwrap();
        let graph = build_graph(ensemble).unwrap();
        let is_decoupled: Vec<bool> =
            ensemble.steps.iter().map(|step| step.model.starts_with('d')).collect();
        let found = stages(&config, ensemble, &graph, &is_decoupled).ok().unwrap();
        assert_eq!(found.of_steps, expected, "{steps:?}");
        let ends: Vec<_> = found.all.iter().map(|stage| (stage.source, stage.end)).collect();
        assert_eq!(ends, stages_expected, "{steps:?}");
    }

    #[test]
    fn a_stage_begins_behind_each_decoupled_step() {
        use StageEnd::{Client, Step};
        check(&["a: in -> x", "b: x -> out"], &[0, 0], &[(None, Client)]);
        check(&["d: in -> out"], &[0], &[(None, Step(0)), (Some(0), Client)]);
        check(
            &["a: in -> x", "d: x -> y z", "b: y -> v", "c: z v -> out"],
            &[0, 0, 1, 1],
            &[(None, Step(1)), (Some(1), Client)],
        );
        // Written in any order.
        check(
            &["d2: y -> out", "b: x -> y", "d1: in -> x"],
            &[1, 1, 0],
            &[(None, Step(2)), (Some(2), Step(0)), (Some(0), Client)],
        );
    }
}
