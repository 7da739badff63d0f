//! Warm-up samples: what is read, and what is wrong with them in themselves.

use super::*;
use crate::tensor::DataType;

/// A model whose line 2 is `warmup`.
fn model(warmup: &str) -> String {
    format!(
        "name: 'm' backend: 'python' input {{ name: 'x' data_type: TYPE_FP32 dims: 2 }}\n{warmup}"
    )
}

#[test]
fn samples_are_read_in_order() {
    let config = good(&model(
        "model_warmup [ { name: 'a' batch_size: 3 count: 5 inputs [
             { key: 'x' value: { data_type: TYPE_FP32 dims: [ 4, 1 ] zero_data: true } },
             { key: 'y' value: { data_type: TYPE_STRING dims: 2 random_data: true } },
             { key: 'z' value: { data_type: TYPE_BF16 dims: 0 input_data_file: 'a/./z' } } ] },
           { name: 'b' batch_size: 1 inputs { key: 'x' value: { data_type: TYPE_BOOL
             zero_data: false } } } ]",
    ));
    let input = |name: &str, dtype, dims: &[i64], data| WarmupInput {
        name: name.into(),
        dtype,
        dims: dims.to_vec(),
        data,
    };
    let expected = [
        Warmup {
            name: "a".into(),
            batch_size: 3,
            count: 5,
            inputs: vec![
                input("x", DataType::Fp32, &[4, 1], WarmupData::Zero),
                input("y", DataType::Bytes, &[2], WarmupData::Random),
                input("z", DataType::Bf16, &[0], WarmupData::File("a/./z".into())),
            ],
        },
        Warmup {
            name: "b".into(),
            batch_size: 1,
            // Not written, and once is the least.
            count: 1,
            inputs: vec![input("x", DataType::Bool, &[], WarmupData::Zero)],
        },
    ];
    assert_eq!(config.warmup, expected);
}

#[test]
fn every_problem_is_told_at_its_input() {
    let sample = |inputs: &str| model(&format!("model_warmup {{ batch_size: 1\n{inputs} }}"));
    let input = |name: &str, value: &str| format!("inputs {{ key: '{name}' value {{ {value} }} }}");
    let text = [
        input("a", "data_type: TYPE_FP32 dims: [ 2, -1 ] zero_data: true"),
        input("b", "data_type: TYPE_FP32 dims: 2"),
        input("c", "dims: 2 zero_data: true"),
        input("d", "data_type: TYPE_FP32 dims: 2 input_data_file: '../d'"),
        input("e", "data_type: TYPE_FP32 dims: 2 input_data_file: '/e'"),
        input("f", "data_type: TYPE_FP32 dims: 1 zero_data: true"),
        input("f", "data_type: TYPE_FP32 dims: 2 zero_data: true"),
    ];
    let outside = "is outside the model's warmup directory";
    check(
        &sample(&text.join("\n")),
        &[
            "9:1: warmup sample '' specifies input 'f' more than once",
            "3:1: warmup setting expects all variable-size dimensions are specified for input 'a'",
            "4:1: warmup setting expects input 'b' to have input_data_type set",
            "5:1: warmup input 'c' must specify 'data_type' for m",
            &format!("6:1: warmup file path '../d' for input 'd' in model 'm' {outside}"),
            &format!("7:1: warmup file path '/e' for input 'e' in model 'm' {outside}"),
        ],
    );
}

#[test]
fn a_sample_without_rows_is_not_looked_at() {
    let config = good(&model(
        "model_warmup { name: 'off' inputs { key: 'x' value { dims: -1 } } } model_warmup { }",
    ));
    let sizes: Vec<_> = config.warmup.iter().map(|it| (it.batch_size, it.inputs.len())).collect();
    assert_eq!(sizes, [(0, 0), (0, 0)]);
}

#[test]
fn an_ensemble_has_samples_too() {
    let config = good(
        "name: 'm' platform: 'ensemble' input { name: 'a' data_type: TYPE_FP32 dims: 2 } output { \
         name: 'b' data_type: TYPE_FP32 dims: 2 } model_warmup { name: 'w' batch_size: 1 inputs { \
         key: 'a' value { data_type: TYPE_FP32 dims: 2 zero_data: true } } } ensemble_scheduling { \
         step { model_name: 'n' input_map { key: 'x' value: 'a' } output_map { key: 'y' value: 'b' \
         } } }",
    );
    assert_eq!(config.warmup.len(), 1);
}
