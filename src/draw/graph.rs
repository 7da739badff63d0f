//! A model as it is right now: its steps with their numbers, and the tensors between them.

use std::{sync::Arc, time::Instant};

use serde::Serialize;

use super::{
    picture::{self, EnsemblePicture, Port, TensorPath},
    step::{StepView, WorkNumbers},
};
use troupe_base::{
    metrics::activity::TensorActivity,
    model::Model,
    statistics::sliding_window::{SLOT_DURATION, SLOTS},
    tensor::DataType,
};

/// An ensemble; or any other model, alone between its inputs and outputs.
#[derive(Clone, Debug, Serialize)]
pub struct LiveGraph {
    /// The model's name.
    pub model: String,
    /// The version's number.
    pub version: String,
    /// It runs other models.
    pub ensemble: bool,
    /// It and all of its steps can take work.
    pub ready: bool,
    /// What `p50_us` and `p99_us` look back on.
    pub window_seconds: u64,
    /// Its requests, from the client's request to the answer.
    pub numbers: WorkNumbers,
    /// Inputs of the client, then steps, then outputs of the client, each in the config's order.
    pub nodes: Vec<GraphNode>,
    /// One for each reader of a tensor.
    pub edges: Vec<Edge>,
}

/// A place that tensors come from or go to.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum GraphNode {
    /// What the client sends.
    Input(ClientTensor),
    /// A model at work.
    Step(Box<StepView>),
    /// What the client gets.
    Output(ClientTensor),
}

/// An input or an output of the whole.
#[derive(Clone, Debug, Serialize)]
pub struct ClientTensor {
    /// `input:NAME` or `output:NAME`.
    pub id: String,
    /// The tensor's name.
    pub name: String,
    /// As requests spell it.
    pub datatype: &'static str,
    /// -1: any size; the batch dimension included.
    pub shape: Vec<i64>,
}

/// A tensor's way to one of its readers.
#[derive(Clone, Debug, Serialize)]
pub struct Edge {
    /// The tensor's name in the ensemble.
    pub tensor: String,
    /// The id of the node it comes from.
    pub from: String,
    /// What the model there calls it; empty for the client.
    pub output: String,
    /// The id of the node it goes to.
    pub to: String,
    /// What the model there calls it; empty for the client.
    pub input: String,
    /// As requests spell it; empty if its maker has no such output.
    pub datatype: &'static str,
    /// -1: any size; the batch dimension of its maker included.
    pub shape: Vec<i64>,
    /// Over the last ten seconds or a little more; `None` if it is not counted.
    pub bytes_per_second: Option<f64>,
    /// Tensors handed on since the load.
    pub tensors: Option<u64>,
    /// Bytes handed on since the load.
    pub bytes: Option<u64>,
}

impl LiveGraph {
    /// The model as it is at `now`.
    pub fn of(model: &Arc<Model>, now: Instant) -> LiveGraph {
        let picture = EnsemblePicture::of(&model.config);
        let config = &*model.config;
        let live = model.live().map(|it| &**it);
        let steps = steps(model);
        let tensor = |side: &str, name: &Arc<str>, dtype: DataType, dims: &[i64]| ClientTensor {
            id: format!("{side}:{name}"),
            name: name.to_string(),
            datatype: dtype.as_str(),
            shape: config.with_batch(dims),
        };
        let inputs = config.inputs.iter().map(|it| tensor("input", &it.name, it.dtype, &it.dims));
        let outputs =
            config.outputs.iter().map(|it| tensor("output", &it.name, it.dtype, &it.dims));
        let mut nodes: Vec<GraphNode> = inputs.map(GraphNode::Input).collect();
        nodes.extend(steps.iter().enumerate().map(|(index, it)| {
            let counted = live.and_then(|live| live.steps.get(index));
            GraphNode::Step(Box::new(StepView::of(index, it, counted, now)))
        }));
        nodes.extend(outputs.map(GraphNode::Output));
        let edges = picture.flows.iter().flat_map(|flow| {
            let activity = live.and_then(|live| live.tensor(&flow.tensor));
            edges(flow, &picture, &steps, &nodes, activity, now)
        });
        LiveGraph {
            model: config.name.to_string(),
            version: model.version.to_string(),
            ensemble: config.is_ensemble(),
            ready: model.is_ready(),
            window_seconds: (SLOT_DURATION * SLOTS as u32).as_secs(),
            numbers: WorkNumbers::of_model(model, now),
            edges: edges.collect(),
            nodes,
        }
    }

    /// The steps, by their nodes.
    pub fn steps(&self) -> impl Iterator<Item = (usize, &StepView)> {
        self.nodes.iter().enumerate().filter_map(|(index, it)| match it {
            GraphNode::Step(step) => Some((index, &**step)),
            _ => None,
        })
    }
}

impl GraphNode {
    /// Its name in edges.
    pub fn id(&self) -> &str {
        match self {
            GraphNode::Input(it) | GraphNode::Output(it) => &it.id,
            GraphNode::Step(it) => &it.id,
        }
    }
}

/// The models of the steps; of a model that has none, it alone.
fn steps(model: &Arc<Model>) -> Vec<Arc<Model>> {
    match model.config.is_ensemble() {
        true => model.steps.clone(),
        false => vec![model.clone()],
    }
}

fn edges(
    flow: &TensorPath,
    picture: &EnsemblePicture,
    steps: &[Arc<Model>],
    nodes: &[GraphNode],
    activity: Option<TensorActivity<'_>>,
    now: Instant,
) -> Vec<Edge> {
    let name = |side: fn(&picture::PictureNode) -> &Vec<String>, port: Port| {
        side(&picture.nodes[port.of])[port.row].clone()
    };
    let output = name(|it| &it.outputs, flow.from);
    let (datatype, shape) = match &nodes[flow.from.of] {
        GraphNode::Step(step) => {
            let maker = &steps[step.step].config;
            let made = maker.output_index(&output).map(|it| &maker.outputs[it]);
            made.map_or(("", Vec::new()), |it| (it.dtype.as_str(), maker.with_batch(&it.dims)))
        }
        GraphNode::Input(it) | GraphNode::Output(it) => (it.datatype, it.shape.clone()),
    };
    let total = activity.map(|it| it.total());
    let edge = |to: &Port| Edge {
        tensor: flow.tensor.clone(),
        from: nodes[flow.from.of].id().to_owned(),
        output: output.clone(),
        to: nodes[to.of].id().to_owned(),
        input: name(|it| &it.inputs, *to),
        datatype,
        shape: shape.clone(),
        bytes_per_second: activity.map(|activity| activity.per_second(now)),
        tensors: total.map(|it| it.0),
        bytes: total.map(|it| it.1),
    };
    flow.to.iter().map(edge).collect()
}
