//! Examples of inputs, made from what a model says of them.

use serde_json::{Value, json};

use troupe_base::{
    config::{Input, ModelConfig},
    tensor::{DataType, element_count},
};

/// More elements than that are not written out.
const MAX_EXAMPLE_ELEMENTS: usize = 64;

/// A shape that fits: open dimensions are 1.
pub(crate) fn shape(config: &ModelConfig, input: &Input) -> Vec<i64> {
    config.full_dims(input).iter().map(|it| if *it < 0 { 1 } else { *it }).collect()
}

/// Elements of that shape in one list, other ones for each input; `None` if they are too many to be written.
pub(crate) fn data(config: &ModelConfig, input: &Input) -> Option<Vec<Value>> {
    let count = element_count(&shape(config, input)).ok();
    let count = count.filter(|it| *it <= MAX_EXAMPLE_ELEMENTS)?;
    let element = |index: usize| match input.dtype {
        DataType::Bytes => json!("text"),
        DataType::Bool => json!(true),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => json!(index as f64),
        _ => json!(index),
    };
    let first = 1 + config.inputs.iter().position(|it| it.name == input.name).unwrap_or(0);
    Some((first..first + count).map(element).collect())
}

/// Bytes in a row are most likely those of a file, whatever the size of the batch.
pub(crate) fn is_file(input: &Input) -> bool {
    input.dtype == DataType::Uint8
        && input.dims.iter().filter(|it| **it != 1).count() == 1
        && input.dims.contains(&-1)
}
