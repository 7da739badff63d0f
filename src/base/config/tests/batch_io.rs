//! What is said about ragged inputs, batch inputs and batch outputs.

use super::super::{BatchInput, BatchInputKind};
use super::{check, good};
use crate::tensor::DataType;

/// A batching model with a ragged input and an output on line 1, and more on line 2.
fn ragged(more: &str) -> String {
    format!(
        "name: 'm' backend: 'onnxruntime' max_batch_size: 8 \
         input {{ name: 'x' data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }} \
         input {{ name: 'z' data_type: TYPE_FP32 dims: -1 }} \
         output {{ name: 'y' data_type: TYPE_FP32 dims: -1 }}\n{more}"
    )
}

/// A batch input of what `fields` say, INT32 if they do not say.
fn batch_input(fields: &str) -> String {
    ragged(&format!("batch_input {{ {fields} }}"))
}

#[test]
fn batch_inputs_come_after_the_inputs() {
    let config = good(&ragged(
        "batch_input { kind: BATCH_ITEM_SHAPE target_name: ['s', 't'] data_type: TYPE_INT32 source_input: 'z' }
        batch_input { target_name: 'n' data_type: TYPE_FP32 source_input: 'x' }
        batch_output { target_name: 'y' source_input: 'x' }",
    ));
    assert!(config.has_batch_io() && config.inputs[0].ragged && !config.inputs[1].ragged);
    let of = |kind, names: &[&str], dtype, source| BatchInput {
        kind,
        names: names.iter().map(|it| (*it).into()).collect(),
        dtype,
        source,
    };
    assert_eq!(
        config.batch_inputs,
        [
            of(BatchInputKind::ItemShape, &["s", "t"], DataType::Int32, 1),
            of(BatchInputKind::ElementCount, &["n"], DataType::Fp32, 0),
        ]
    );
    let seen: Vec<_> = config.executor_inputs().map(|(name, dtype)| (&**name, dtype)).collect();
    let (int, float) = (DataType::Int32, DataType::Fp32);
    assert_eq!(seen, [("x", float), ("z", float), ("s", int), ("t", int), ("n", float)]);
    assert_eq!(config.outputs[0].scatter, Some(0));
}

#[test]
fn an_ordinary_model_has_no_batch_io() {
    let config =
        good("name: 'm' backend: 'onnxruntime' input { name: 'x' data_type: TYPE_FP32 dims: 1 }");
    assert!(!config.has_batch_io() && config.batch_inputs.is_empty());
}

#[test]
fn a_batch_input_is_of_one_input_and_one_of_two_types() {
    let good = "target_name: 'n' data_type: TYPE_INT32";
    check(&batch_input(&format!("{good} source_input: 'x'")), &[]);
    check(
        &batch_input(good),
        &["2:1: batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m"],
    );
    check(
        &batch_input(&format!("kind: BATCH_ITEM_SHAPE_FLATTEN {good} source_input: ['x', 'z']")),
        &["2:85: batch input kind 'BATCH_ITEM_SHAPE_FLATTEN' expects 1 source input, got 2 for m"],
    );
    check(
        &batch_input("target_name: 'n' source_input: 'nope'"),
        &[
            "2:1: batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
            "2:32: unknown source input name 'nope' for m",
        ],
    );
    check(
        &batch_input("target_name: 'n' data_type: TYPE_INT64 source_input: 'x'"),
        &["2:32: batch input data type must be TYPE_INT32 or TYPE_FP32 for m"],
    );
}

#[test]
fn a_batch_input_has_a_name_of_its_own() {
    let rest = "data_type: TYPE_INT32 source_input: 'x'";
    check(
        &batch_input(rest),
        &["2:1: batch input kind 'BATCH_ELEMENT_COUNT' expects a target name, got 0 for m"],
    );
    check(
        &batch_input(&format!("target_name: ['n', 'x', 'n'] {rest}")),
        &[
            "2:15: batch input 'x' is specified more than once for m",
            "2:15: batch input 'n' is specified more than once for m",
        ],
    );
}

#[test]
fn shapes_of_rows_need_rows() {
    let text = "name: 'm' backend: 'onnxruntime' input { name: 'x' data_type: TYPE_FP32 dims: 1 }\n\
                batch_input { kind: BATCH_ITEM_SHAPE target_name: 'n' data_type: TYPE_INT32 \
                source_input: 'x' }";
    check(
        text,
        &["2:15: batch input kind 'BATCH_ITEM_SHAPE' expects 'max_batch_size' > 0, got 0 for m"],
    );
}

#[test]
fn a_batch_output_is_an_output_shaped_by_one_input() {
    let batch_output = |fields: &str| ragged(&format!("batch_output {{ {fields} }}"));
    let kind = "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE'";
    check(
        &batch_output("target_name: 'y'"),
        &[&format!("2:1: {kind} expects 1 source input, got 0 for m")],
    );
    check(
        &batch_output("target_name: 'y' source_input: 'nope'"),
        &["2:33: unknown source input name 'nope' for m"],
    );
    check(
        &batch_output("target_name: ['nope', 'y', 'y'] source_input: 'x'"),
        &[
            "2:16: unknown target output name 'nope' for m",
            "2:16: target output name 'y' can only be specified once for m",
        ],
    );
    check(
        &batch_output("source_input: 'x'"),
        &[&format!("2:1: {kind} expects a target name, got 0 for m")],
    );
}
