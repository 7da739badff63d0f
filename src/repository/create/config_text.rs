//! The text of a `config.pbtxt`: tensors and maps as people write them.

use std::fmt::Write;

use super::wiring::StepTensor;

/// `input [ … ]` or `output [ … ]`, one tensor a line.
pub(super) fn tensors(field: &str, tensors: &[StepTensor]) -> String {
    let lines: Vec<String> = tensors.iter().map(|it| format!("  {}", tensor(it))).collect();
    format!("{field} [\n{}\n]\n", lines.join(",\n"))
}

fn tensor(tensor: &StepTensor) -> String {
    let dims: Vec<String> = tensor.dims.iter().map(i64::to_string).collect();
    let (name, dims) = (quoted(&tensor.name), dims.join(", "));
    format!("{{ name: {name} data_type: {} dims: [ {dims} ] }}", tensor.dtype.config_name())
}

/// An entry of `input_map` or `output_map`.
pub(super) fn map(text: &mut String, field: &str, model: &str, ensemble: &str) {
    let (key, value) = (quoted(model), quoted(ensemble));
    // Writing to a String does not fail.
    let _ = writeln!(text, "      {field} {{ key: {key} value: {value} }}");
}

/// A text as protobuf's text format has it.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted.push_str("\\n"),
            _ => quoted.push(letter),
        }
    }
    quoted + "\""
}
