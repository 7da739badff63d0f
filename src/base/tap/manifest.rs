//! The manifest of a capture: its table of contents, `manifest.json` in its archive.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Capture, CaptureEnd, CapturedRequest, CapturedTensor};
use crate::{
    config::ModelConfig,
    numpy::npy::stored_as,
    request::{Parameter, Parameters, Wanted},
};

/// The manifest's name in the archive.
pub const NAME: &str = "manifest.json";
/// What `format` says.
pub const FORMAT: &str = "troupe tap 1";

/// Everything about a capture but the tensors' elements.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Manifest {
    /// `FORMAT`.
    pub format: String,
    /// The ensemble's name.
    pub ensemble: String,
    /// Its version.
    pub version: i64,
    /// `complete`, `timeout`, `unloaded` or `exiting`.
    pub ended: String,
    /// How many requests were to be captured.
    pub requested: usize,
    /// The bound, and what was counted against it: tensors, and a little for each.
    pub max_bytes: usize,
    /// Bytes held.
    pub bytes: usize,
    /// Bytes of tensors that did not fit.
    pub left_out_bytes: usize,
    /// The tensors that were to be captured.
    pub edges: Vec<String>,
    /// Inputs of the ensemble.
    pub inputs: Vec<String>,
    /// Outputs of the ensemble.
    pub outputs: Vec<String>,
    /// In the order of the config.
    pub steps: Vec<ManifestStep>,
    /// In the order they began.
    pub requests: Vec<ManifestRequest>,
    /// How the arrays of some types are to be read.
    #[serde(default)]
    pub notes: Map<String, Value>,
}

/// A step of the ensemble.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ManifestStep {
    /// Its position.
    pub step: usize,
    /// The model's name.
    pub model: String,
    /// As the config has it; -1: the latest.
    pub model_version: i64,
    /// The version that ran.
    pub version: i64,
    /// It gives any number of responses.
    pub decoupled: bool,
    /// Input of the model, tensor of the ensemble.
    pub inputs: Vec<(String, String)>,
    /// Output of the model, tensor of the ensemble.
    pub outputs: Vec<(String, String)>,
}

/// A captured request.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ManifestRequest {
    /// Its number.
    pub request: usize,
    /// The client's id.
    pub id: String,
    /// The client's parameters.
    pub parameters: Map<String, Value>,
    /// The outputs it asked for.
    pub outputs: Vec<String>,
    /// Its batch size; 0: the ensemble does not batch.
    pub batch_size: u32,
    /// It was through when the capture ended.
    pub ended: bool,
    /// Nothing of it was kept, as nothing fitted any more.
    pub is_left_out: bool,
    /// Steps that failed.
    pub errors: Vec<ManifestFailure>,
    /// Failures whose texts did not fit.
    pub more_errors: usize,
    /// The arrays.
    pub tensors: Vec<ManifestTensor>,
    /// Tensors that did not fit.
    pub left_out: Vec<ManifestLeftOut>,
}

/// A step that failed.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ManifestFailure {
    /// Its position.
    pub step: usize,
    /// Which response of a decoupled step it worked on.
    pub iteration: Option<u64>,
    /// What its model said.
    pub error: String,
}

/// An array and the tensor it is.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ManifestTensor {
    /// The array's name in the archive.
    pub array: String,
    /// The tensor's name in the ensemble.
    pub tensor: String,
    /// The step that wrote it; none: the client did.
    pub written_by: Option<usize>,
    /// The steps that read it.
    pub read_by: Vec<usize>,
    /// Which response of a decoupled step it follows from.
    pub iteration: Option<u64>,
    /// `FP32`, `BYTES` and so on.
    pub datatype: String,
    /// Its dimensions, the batch included.
    pub shape: Vec<i64>,
    /// numpy's type of the array.
    pub stored_as: String,
    /// The batch size of the request that made it; 0: its maker does not batch.
    pub batch_size: u32,
}

/// Tensors of one name that did not fit.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ManifestLeftOut {
    /// The tensor's name.
    pub tensor: String,
    /// How many.
    pub count: usize,
    /// Of how many bytes together.
    pub bytes: usize,
}

/// What a capture was taken from, and what was asked for.
#[derive(Clone, Debug)]
pub struct CaptureOrigin<'a> {
    /// The ensemble's config.
    pub config: &'a ModelConfig,
    /// Its version.
    pub version: i64,
    /// The version of each step's model and whether it is decoupled.
    pub steps: &'a [(i64, bool)],
    /// The ensemble's tensors, by slot, and whether they were to be kept.
    pub edges: &'a [(std::sync::Arc<str>, bool)],
    /// How many requests were to be captured.
    pub requested: usize,
    /// How many bytes were to be held at most.
    pub max_bytes: usize,
}

impl Manifest {
    /// Describes a capture.
    pub fn of(origin: &CaptureOrigin<'_>, capture: &Capture, ended: CaptureEnd) -> Manifest {
        let CaptureOrigin { config, version, edges, requested, max_bytes, .. } = origin;
        let steps = steps(origin);
        let requests = capture.requests.iter().enumerate();
        let requests = requests.map(|(number, captured)| request(origin, &steps, number, captured));
        Manifest {
            format: FORMAT.to_owned(),
            ensemble: config.name.to_string(),
            version: *version,
            ended: ended.as_str().to_owned(),
            requested: *requested,
            max_bytes: *max_bytes,
            bytes: capture.bytes,
            left_out_bytes: capture.left_out_bytes,
            edges: edges.iter().filter(|it| it.1).map(|it| it.0.to_string()).collect(),
            inputs: config.inputs.iter().map(|it| it.name.to_string()).collect(),
            outputs: config.outputs.iter().map(|it| it.name.to_string()).collect(),
            requests: requests.collect(),
            steps,
            notes: notes(),
        }
    }
}

fn notes() -> Map<String, Value> {
    let notes = [
        (
            "BYTES",
            "uint8 in one dimension: of each element its length (4 bytes, little-endian), then its \
             bytes; 'shape' is the tensor's own",
        ),
        ("BF16", "uint16: the upper half of an FP32"),
    ];
    notes.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect()
}

fn steps(origin: &CaptureOrigin<'_>) -> Vec<ManifestStep> {
    let steps = origin.config.ensemble.iter().flat_map(|it| &it.steps).enumerate();
    let step = |(index, it): (usize, &crate::config::StepConfig)| {
        let (version, decoupled) = origin.steps.get(index).copied().unwrap_or_default();
        ManifestStep {
            step: index,
            model: it.model.clone(),
            model_version: it.version,
            version,
            decoupled,
            inputs: it.inputs.clone(),
            outputs: it.outputs.clone(),
        }
    };
    steps.map(step).collect()
}

fn request(
    origin: &CaptureOrigin<'_>,
    steps: &[ManifestStep],
    number: usize,
    captured: &CapturedRequest,
) -> ManifestRequest {
    let name = |slot: usize| origin.edges[slot].0.to_string();
    let left_out = captured.left_out.iter().enumerate().filter(|(_, it)| it.count != 0);
    let left_out = left_out.map(|(slot, it)| ManifestLeftOut {
        tensor: name(slot),
        count: it.count,
        bytes: it.bytes,
    });
    let tensors = captured.edges.iter().map(|edge| tensor(number, edge, name(edge.slot), steps));
    let failure = |it: &super::StepFailure| ManifestFailure {
        step: it.step,
        iteration: it.iteration,
        error: it.text.clone(),
    };
    ManifestRequest {
        request: number,
        id: captured.id.clone(),
        parameters: parameters(captured.parameters.iter().chain(&captured.sequence)),
        outputs: outputs(origin.config, &captured.wanted),
        batch_size: captured.batch,
        ended: captured.has_ended,
        is_left_out: captured.is_left_out,
        errors: captured.failed.iter().map(failure).collect(),
        more_errors: captured.more_failed,
        tensors: tensors.collect(),
        left_out: left_out.collect(),
    }
}

fn outputs(config: &ModelConfig, wanted: &Wanted) -> Vec<String> {
    let outputs = config.outputs.iter().enumerate().filter(|(index, _)| wanted.has(*index));
    outputs.map(|(_, it)| it.name.to_string()).collect()
}

fn tensor(
    request: usize,
    edge: &CapturedTensor,
    name: String,
    steps: &[ManifestStep],
) -> ManifestTensor {
    let has = |map: &[(String, String)]| map.iter().any(|(_, tensor)| *tensor == name);
    let written_by = steps.iter().position(|it| has(&it.outputs));
    let read_by = steps.iter().filter(|it| has(&it.inputs)).map(|it| it.step).collect();
    ManifestTensor {
        array: array(request, edge.iteration, &name),
        written_by,
        read_by,
        iteration: edge.iteration,
        datatype: edge.tensor.dtype().as_str().to_owned(),
        shape: edge.tensor.shape().to_vec(),
        stored_as: stored_as(edge.tensor.dtype()).to_owned(),
        batch_size: edge.batch,
        tensor: name,
    }
}

/// The name of a tensor's array. A tensor may have any name, so what is ours stands before the
/// first slash.
fn array(request: usize, iteration: Option<u64>, tensor: &str) -> String {
    match iteration {
        None => format!("request-{request}/{tensor}"),
        Some(iteration) => format!("request-{request}-iteration-{iteration}/{tensor}"),
    }
}

fn parameters<'a>(
    all: impl Iterator<Item = &'a (std::borrow::Cow<'static, str>, Parameter)>,
) -> Map<String, Value> {
    let value = |it: &Parameter| match it {
        Parameter::Bool(it) => Value::from(*it),
        Parameter::Int(it) => Value::from(*it),
        Parameter::Uint(it) => Value::from(*it),
        Parameter::Double(it) => Value::from(*it),
        Parameter::String(it) => Value::from(&**it),
    };
    all.map(|(name, it)| (name.to_string(), value(it))).collect()
}

impl ManifestRequest {
    /// The client's parameters as it sent them.
    pub fn parameters(&self) -> Parameters {
        let value = |it: &Value| match it {
            Value::Bool(it) => Some(Parameter::Bool(*it)),
            Value::String(it) => Some(Parameter::String(it.clone())),
            Value::Number(it) => {
                let whole = it.as_i64().map(Parameter::Int).or(it.as_u64().map(Parameter::Uint));
                whole.or(it.as_f64().map(Parameter::Double))
            }
            _ => None,
        };
        let all = self.parameters.iter();
        all.filter_map(|(name, it)| Some((name.clone().into(), value(it)?))).collect()
    }
}
