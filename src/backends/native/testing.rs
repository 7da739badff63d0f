//! What tests of ops share: configs, tensors, and the answers of other libraries.

use bytes::Bytes;
use serde_json::Value;

use super::op::Op;
use troupe_base::{
    backend::Tensors,
    config::{ModelConfig, ServerFeatures, read_text},
    error::Result,
    tensor::{DataType, Shape, Tensor},
};

/// The config of a native model `m`.
#[track_caller]
pub(super) fn config(text: &str) -> ModelConfig {
    let draft = read_text(&format!("name: \"m\" backend: \"native\" {text}"), "f");
    draft.and_then(|it| it.finish(&ServerFeatures::default())).unwrap()
}

/// An entry of `parameters`.
pub(super) fn parameter(key: &str, value: &str) -> String {
    format!(" parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}")
}

pub(super) fn fp32(shape: &[i64], elements: impl IntoIterator<Item = f32>) -> Tensor {
    super::tensors::floats(shape, elements).unwrap()
}

pub(super) fn uint8(shape: &[i64], elements: Vec<u8>) -> Tensor {
    Tensor::new(DataType::Uint8, Shape::from_slice(shape), Bytes::from(elements)).unwrap()
}

/// Runs a model that does not batch.
pub(super) fn run(op: &Op, inputs: &[&Tensor]) -> Result<Tensors> {
    run_rows(op, inputs, 0)
}

/// Runs so many rows.
pub(super) fn run_rows(op: &Op, inputs: &[&Tensor], rows: u32) -> Result<Tensors> {
    (op.open)()(inputs.iter().map(|it| Some((*it).clone())).collect(), rows)
}

/// The elements of an FP32 output.
#[track_caller]
pub(super) fn numbers(output: &Option<Tensor>) -> Vec<f32> {
    super::tensors::Floats::of(output.as_ref().unwrap()).iter().collect()
}

/// Numbers of a JSON array, whatever lies inside what.
pub(super) fn flat(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(all) => all.iter().flat_map(flat).collect(),
        other => vec![other.as_f64().unwrap() as f32],
    }
}

/// The answers `tests/models/vision/make_boxes.py` wrote down.
pub(super) fn reference() -> Value {
    let text = include_str!("../../../tests/models/vision/boxes.json");
    serde_json::from_str(text).unwrap()
}

/// A file of `tests/models/vision`, where `make.py` says what it is.
#[track_caller]
pub(super) fn file(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/vision/");
    std::fs::read(format!("{path}{name}")).unwrap_or_else(|error| panic!("{name}: {error}"))
}
