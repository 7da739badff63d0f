//! What there is to see in a config: nodes with named ports, and the tensors between them.

use std::collections::HashMap;

use petgraph::algo::toposort;

use super::{
    scheduling,
    status::{LiveStep, LiveTensor},
};
use troupe_base::{
    config::{EnsembleConfig, ModelConfig, StepConfig},
    tensor::{DataType, shape_text},
};
use troupe_engine::ensemble::build_graph;

/// Everything to draw; ports and nodes are numbers from here on.
pub(super) struct EnsemblePicture {
    pub(super) model: String,
    /// Inputs of the client, then steps, then outputs of the client, each in the order of the file.
    pub(super) nodes: Vec<PictureNode>,
    pub(super) flows: Vec<TensorPath>,
}

/// An input of the client, a step, or an output of the client.
pub(super) struct PictureNode {
    pub(super) kind: NodeKind,
    pub(super) name: String,
    /// Type and shape of a client's tensor; number and version of a step.
    pub(super) note: String,
    /// What the config of a step's model says of scheduling, a line each.
    pub(super) facts: Vec<String>,
    /// What the model calls the tensors it reads; one without a name for a client's output.
    pub(super) inputs: Vec<String>,
    /// What the model calls the tensors it writes; one without a name for a client's input.
    pub(super) outputs: Vec<String>,
    /// Distance from the client's inputs: tensors go from lower to higher columns.
    pub(super) column: usize,
    /// What the step does right now.
    pub(super) live: Option<LiveStep>,
}

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    Input,
    Step,
    Output,
}

/// A tensor on its way from the one who writes it to all who read it.
pub(super) struct TensorPath {
    pub(super) tensor: String,
    pub(super) from: Port,
    pub(super) to: Vec<Port>,
    /// Its type and shape, and how much of it there is right now.
    pub(super) live: Option<LiveTensor>,
}

/// One of a node's inputs or outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) of: usize,
    pub(super) row: usize,
}

impl EnsemblePicture {
    /// The picture of an ensemble; of any other model, it alone between its inputs and outputs.
    pub(super) fn of(config: &ModelConfig) -> EnsemblePicture {
        let alone;
        let ensemble = match &config.ensemble {
            Some(ensemble) => ensemble,
            None => {
                alone = only(config);
                &alone
            }
        };
        let columns = columns(ensemble);
        let last = columns.iter().max().map_or(1, |it| it + 1);
        let inputs = config.inputs.iter().map(|it| {
            let optional = if it.optional { ", optional" } else { "" };
            let note = note(it.dtype, &it.dims) + optional;
            client(NodeKind::Input, &it.name, note, 0)
        });
        let steps = ensemble.steps.iter().zip(&columns).enumerate();
        let steps = steps.map(|(index, (it, column))| step(index, it, *column));
        let outputs = config
            .outputs
            .iter()
            .map(|it| client(NodeKind::Output, &it.name, note(it.dtype, &it.dims), last));
        let mut picture = EnsemblePicture {
            model: config.name.to_string(),
            nodes: inputs.chain(steps).chain(outputs).collect(),
            flows: flows(config, ensemble),
        };
        if !config.is_ensemble() {
            picture.nodes[config.inputs.len()].facts = scheduling::facts(config);
        }
        picture
    }

    /// Says of the models of steps what their configs say of scheduling; of those that are not known,
    /// nothing.
    pub(super) fn tell_scheduling(&mut self, of_step: &dyn Fn(&str) -> Option<Vec<String>>) {
        for node in self.nodes.iter_mut().filter(|it| it.kind == NodeKind::Step) {
            node.facts = of_step(&node.name).unwrap_or_default();
        }
    }
}

fn client(kind: NodeKind, name: &str, note: String, column: usize) -> PictureNode {
    let port = |wanted| if kind == wanted { vec![String::new()] } else { Vec::new() };
    let (outputs, inputs) = (port(NodeKind::Input), port(NodeKind::Output));
    let (name, facts) = (name.to_owned(), Vec::new());
    PictureNode { kind, name, note, facts, inputs, outputs, column, live: None }
}

fn step(index: usize, step: &StepConfig, column: usize) -> PictureNode {
    let names = |map: &[(String, String)]| map.iter().map(|(name, _)| name.clone()).collect();
    let version = match step.version {
        -1 => String::new(),
        pinned => format!(", v{pinned}"),
    };
    PictureNode {
        kind: NodeKind::Step,
        name: step.model.clone(),
        note: format!("step {index}{version}"),
        facts: Vec::new(),
        inputs: names(&step.inputs),
        outputs: names(&step.outputs),
        column,
        live: None,
    }
}

fn note(dtype: DataType, dims: &[i64]) -> String {
    format!("{} {}", dtype.as_str(), shape_text(dims))
}

/// A model that is not an ensemble, as the only step of one.
fn only(config: &ModelConfig) -> EnsembleConfig {
    let same = |name: &str| (name.to_owned(), name.to_owned());
    let step = StepConfig {
        model: config.name.to_string(),
        version: -1,
        inputs: config.inputs.iter().map(|it| same(&it.name)).collect(),
        outputs: config.outputs.iter().map(|it| same(&it.name)).collect(),
    };
    EnsembleConfig { steps: vec![step], max_inflight_requests: 0 }
}

/// One more than the furthest producer's column, for each step.
fn columns(ensemble: &EnsembleConfig) -> Vec<usize> {
    let mut columns = vec![1; ensemble.steps.len()];
    // A step that waits for itself is reported when the config is checked; here it has no column.
    let Ok(graph) = build_graph(ensemble) else { return columns };
    for node in toposort(&graph, None).unwrap_or_default() {
        for reader in graph.neighbors(node) {
            let (from, to) = (graph[node], graph[reader]);
            columns[to] = columns[to].max(columns[from] + 1);
        }
    }
    columns
}

fn flows(config: &ModelConfig, ensemble: &EnsembleConfig) -> Vec<TensorPath> {
    let first_step = config.inputs.len();
    let first_output = first_step + ensemble.steps.len();
    let mut flows = Vec::new();
    let mut known = HashMap::new();
    let mut write = |tensor: &str, from| {
        known.insert(tensor.to_owned(), flows.len());
        flows.push(TensorPath { tensor: tensor.to_owned(), from, to: Vec::new(), live: None });
    };
    for (of, input) in config.inputs.iter().enumerate() {
        write(&input.name, Port { of, row: 0 });
    }
    for (of, step) in (first_step..).zip(&ensemble.steps) {
        for (row, (_, tensor)) in step.outputs.iter().enumerate() {
            write(tensor, Port { of, row });
        }
    }
    let mut read = |tensor: &str, to| {
        if let Some(flow) = known.get(tensor) {
            flows[*flow].to.push(to);
        }
    };
    for (of, step) in (first_step..).zip(&ensemble.steps) {
        for (row, (_, tensor)) in step.inputs.iter().enumerate() {
            read(tensor, Port { of, row });
        }
    }
    for (of, output) in (first_output..).zip(&config.outputs) {
        read(&output.name, Port { of, row: 0 });
    }
    flows
}
