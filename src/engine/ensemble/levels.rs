//! Decouple labels: how many decoupled steps lie before each step.

use std::collections::HashMap;

use petgraph::algo::toposort;

use super::graph::Graph;
use troupe_base::config::{EnsembleConfig, ModelConfig, Problem};

/// The label of what each step reads: 0 for what follows from the client's inputs alone, and one
/// more behind each decoupled step. Or every step that reads tensors of different labels, in
/// Triton's words: their iterations would not belong together.
///
/// As every tensor is read or is an output, and all outputs have one label, the decoupled steps of
/// a config that passes stand in one row.
pub(super) fn levels(
    config: &ModelConfig,
    ensemble: &EnsembleConfig,
    graph: &Graph,
    is_decoupled: &[bool],
) -> Result<Vec<usize>, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut conflict = |path: &str, model: &str| {
        let text = format!(
            "in ensemble {}, step of model '{model}' receives inputs originated from different \
             decoupled models",
            config.name
        );
        problems.push(config.source_map.problem(path, text));
    };
    let mut labels: HashMap<&str, Label> = HashMap::new();
    labels.extend(config.inputs.iter().map(|it| (&*it.name, Label::Of(0))));
    let mut levels = vec![0; ensemble.steps.len()];
    let mut created = 0;
    for node in toposort(graph, None).unwrap_or_default() {
        let index = graph[node];
        let step = &ensemble.steps[index];
        let mut label = common(step.inputs.iter().filter_map(|(_, it)| labels.get(it.as_str())));
        match label {
            Label::Of(level) => levels[index] = level,
            Label::Any => (),
            Label::Different => {
                conflict(&format!("ensemble_scheduling.step[{index}]"), &step.model);
                // Told once: whoever reads its outputs is not at fault.
                label = Label::Any;
            }
        }
        if is_decoupled[index] {
            created += 1;
            label = Label::Of(created);
        }
        labels.extend(step.outputs.iter().map(|(_, it)| (it.as_str(), label)));
    }
    let outputs = config.outputs.iter().filter_map(|it| labels.get(&*it.name));
    if common(outputs) == Label::Different {
        conflict("ensemble_scheduling", &config.name);
    }
    if problems.is_empty() { Ok(levels) } else { Err(problems) }
}

/// Which decoupled step a tensor follows from.
#[derive(Clone, Copy, PartialEq)]
enum Label {
    Of(usize),
    /// Not known: agrees with all.
    Any,
    Different,
}

fn common<'a>(labels: impl Iterator<Item = &'a Label>) -> Label {
    let both = |a: Label, b: &Label| match (a, *b) {
        (Label::Any, label) | (label, Label::Any) => label,
        (a, b) if a == b => a,
        _ => Label::Different,
    };
    labels.fold(Label::Any, both)
}
