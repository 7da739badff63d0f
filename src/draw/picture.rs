//! What there is to see in a config: nodes with named ports, and the tensors between them.

use std::collections::HashMap;

use petgraph::algo::toposort;

use super::{
    graph::{self, Graph},
    shown::{Carried, Link, Shown},
};
use troupe_base::{
    config::{EnsembleConfig, ModelConfig, StepConfig},
    tensor::{DataType, shape_text},
};
use troupe_engine::ensemble::build_graph;

/// Everything to draw; ports and nodes are numbers from here on.
pub(super) struct Picture {
    pub(super) model: String,
    /// Inputs of the client, then steps, then outputs of the client, each in the order of the file.
    pub(super) nodes: Vec<Node>,
    pub(super) flows: Vec<Flow>,
}

/// An input of the client, a step, or an output of the client.
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// Type and shape of a client's tensor; number and version of a step.
    pub(super) note: String,
    /// What the model calls the tensors it reads; one without a name for a client's output.
    pub(super) inputs: Vec<String>,
    /// What the model calls the tensors it writes; one without a name for a client's input.
    pub(super) outputs: Vec<String>,
    /// Distance from the client's inputs: tensors go from lower to higher columns.
    pub(super) column: usize,
    /// What the step does right now.
    pub(super) live: Option<Shown>,
}

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Input,
    Step,
    Output,
}

/// A tensor on its way from the one who writes it to all who read it.
pub(super) struct Flow {
    pub(super) tensor: String,
    pub(super) from: Port,
    pub(super) to: Vec<Port>,
    /// Its type and shape, and how much of it there is right now.
    pub(super) live: Option<Carried>,
}

/// One of a node's inputs or outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) of: usize,
    pub(super) row: usize,
}

impl Picture {
    /// The picture of an ensemble; of any other model, it alone between its inputs and outputs.
    pub(super) fn of(config: &ModelConfig) -> Picture {
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
            client(Kind::Input, &it.name, note, 0)
        });
        let steps = ensemble.steps.iter().zip(&columns).enumerate();
        let steps = steps.map(|(index, (it, column))| step(index, it, *column));
        let outputs = config
            .outputs
            .iter()
            .map(|it| client(Kind::Output, &it.name, note(it.dtype, &it.dims), last));
        Picture {
            model: config.name.to_string(),
            nodes: inputs.chain(steps).chain(outputs).collect(),
            flows: flows(config, ensemble),
        }
    }

    /// The same with what happens right now; `link` says where a nested ensemble's own graph is.
    pub(super) fn live(config: &ModelConfig, graph: &Graph, link: Link<'_>) -> Picture {
        let mut picture = Picture::of(config);
        for (node, now) in picture.nodes.iter_mut().zip(&graph.nodes) {
            if let graph::Node::Step(step) = now {
                node.note = format!("step {} · v{}", step.step, step.version);
                if !config.is_ensemble() {
                    node.note = format!("v{}", step.version);
                }
                let link = (config.is_ensemble() && step.ensemble).then(|| link(step));
                node.live = Some(Shown::of(step, link));
            }
        }
        for flow in &mut picture.flows {
            let edge = graph.edges.iter().find(|it| it.tensor == flow.tensor);
            flow.live = edge.map(Carried::of);
        }
        picture
    }
}

fn client(kind: Kind, name: &str, note: String, column: usize) -> Node {
    let port = |wanted| if kind == wanted { vec![String::new()] } else { Vec::new() };
    let (outputs, inputs) = (port(Kind::Input), port(Kind::Output));
    Node { kind, name: name.to_owned(), note, inputs, outputs, column, live: None }
}

fn step(index: usize, step: &StepConfig, column: usize) -> Node {
    let names = |map: &[(String, String)]| map.iter().map(|(name, _)| name.clone()).collect();
    let version = match step.version {
        -1 => String::new(),
        pinned => format!(", v{pinned}"),
    };
    Node {
        kind: Kind::Step,
        name: step.model.clone(),
        note: format!("step {index}{version}"),
        inputs: names(&step.inputs),
        outputs: names(&step.outputs),
        column,
        live: None,
    }
}

fn note(dtype: DataType, dims: &[i64]) -> String {
    format!("{} {}", dtype.as_str(), shape_text(dims))
}

/// A model that is no ensemble, as the only step of one.
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

fn flows(config: &ModelConfig, ensemble: &EnsembleConfig) -> Vec<Flow> {
    let first_step = config.inputs.len();
    let first_output = first_step + ensemble.steps.len();
    let mut flows = Vec::new();
    let mut known = HashMap::new();
    let mut write = |tensor: &str, from| {
        known.insert(tensor.to_owned(), flows.len());
        flows.push(Flow { tensor: tensor.to_owned(), from, to: Vec::new(), live: None });
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
