//! A hint for flat JSON that was sent to `infer`: where it goes, and what it is as an inference request.

use serde_json::value::RawValue;

use super::{
    elements::{append, count_flat},
    json_values::{self, Members},
};
use troupe_base::{
    config::{Input, ModelConfig},
    tensor::{Shape, shape_text},
    text::encode_path_segment,
};

/// Longer values are left out of the hint.
const MAX_SHOWN_BYTES: usize = 200;

/// Of a body without `inputs`, whose members are inputs of the model.
pub(super) fn hint(body: &[u8], config: &ModelConfig) -> Option<String> {
    let Ok(Members::Of(members)) = json_values::parse::<Members<'_, &RawValue>>(body) else {
        return None;
    };
    let inputs = members.iter().filter_map(|(key, value)| {
        let input = &config.inputs[config.input_index(key)?];
        Some(tensor(input, &config.full_dims(input), value.get()))
    });
    // The same name may stand there a million times.
    let inputs: Vec<String> = inputs.take(config.inputs.len()).collect();
    if inputs.is_empty() {
        return None;
    }
    Some(format!(
        ": flat JSON goes to /v2/models/{}/generate; here it is {{\"inputs\":[{}]}}",
        encode_path_segment(&config.name),
        inputs.join(",")
    ))
}

/// The value as an input of an inference request.
fn tensor(input: &Input, dims: &[i64], value: &str) -> String {
    let shape = count_flat(value).and_then(|elements| shape(dims, elements));
    let shape = shape_text(shape.as_deref().unwrap_or(dims));
    let data = match value {
        _ if MAX_SHOWN_BYTES < value.len() => "[…]".to_owned(),
        list if list.starts_with('[') => list.to_owned(),
        one => format!("[{one}]"),
    };
    let mut text = b"{\"name\":".to_vec();
    append(&*input.name, &mut text);
    let text = String::from_utf8_lossy(&text);
    let dtype = input.dtype.as_str();
    format!("{text},\"datatype\":\"{dtype}\",\"shape\":{shape},\"data\":{data}}}")
}

/// The shape of so many elements: the innermost open dimension takes what the fixed ones leave
/// over.
pub(super) fn shape(dims: &[i64], elements: usize) -> Option<Shape> {
    let mut left = i64::try_from(elements).ok()?;
    for dim in dims.iter().filter(|it| **it != -1) {
        if left.checked_rem(*dim)? != 0 {
            return None;
        }
        left /= dim;
    }
    let mut shape = Shape::from_slice(dims);
    for dim in shape.iter_mut().rev().filter(|it| **it == -1) {
        *dim = std::mem::replace(&mut left, 1);
    }
    (left == 1).then_some(shape)
}
