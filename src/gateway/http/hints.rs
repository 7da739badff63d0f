//! Hints behind Triton's texts about bodies that cannot be read: which input is meant, what it
//! takes, and how the body would be right.

use actix_web::http::header::{self, HeaderMap};

use super::flat_json;
use crate::openapi;
use troupe_base::{
    config::{ModelConfig, instead},
    error::Error,
    tensor::shape_text,
    text::encode_path_segment,
};

/// Longer examples are left out.
const MAX_EXAMPLE_BYTES: usize = 400;

/// Of an error about a member of the input `name`: what the model takes there.
pub(super) fn of_input(error: Error, config: &ModelConfig, name: &str) -> Error {
    error.with_hint(&match config.input_index(name) {
        Some(index) => {
            let input = &config.inputs[index];
            let shape = shape_text(&config.full_dims(input));
            format!(": input '{name}' takes {} of shape {shape}", input.dtype.as_str())
        }
        None => format!(": of input '{name}'"),
    })
}

/// Of an error about the list of inputs in `body`: how it is written, and where flat JSON goes.
pub(super) fn of_inputs(error: Error, config: &ModelConfig, body: &[u8]) -> Error {
    if let Some(hint) = flat_json::hint(body, config) {
        return error.with_hint(&hint);
    }
    let example = openapi::infer_example(config);
    let example = example.and_then(|it| serde_json::to_string(&it).ok()).filter(|it| is_short(it));
    let open = r#"{"inputs":[{"name":…,"datatype":…,"shape":[…],"data":[…]}]}"#;
    error.with_hint(&format!(": expected a body like {}", example.as_deref().unwrap_or(open)))
}

/// Of an error about a member of flat JSON that was taken as a parameter: that no input has its
/// name, and where bodies with a list of inputs go.
pub(super) fn of_parameter(error: Error, config: &ModelConfig, key: &str) -> Error {
    if matches!(key, "inputs" | "outputs") {
        let path = format!("/v2/models/{}/infer", encode_path_segment(&config.name));
        let flat = flat_example(config);
        return error.with_hint(&format!(
            " A body with '{key}' goes to POST {path}; here it is flat{flat}"
        ));
    }
    let text = format!(" No input of '{}' has this name", config.name);
    error.with_hint(&instead(text, key, "inputs", config.inputs.iter().map(|it| &*it.name)))
}

/// Of an error about a body that is no object but what a form sends: that it must be JSON.
pub(super) fn of_form(error: Error, headers: &HeaderMap, config: &ModelConfig) -> Error {
    let written = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let written = written.unwrap_or_default().split(';').next().unwrap_or_default();
    if !matches!(written, "application/x-www-form-urlencoded" | "multipart/form-data") {
        return error;
    }
    let text = format!(": the body must be JSON, and is a form ({written})");
    error.with_hint(&format!("{text}; to generate it is an object{}", flat_example(config)))
}

/// Is the body no object, whatever its content type says?
pub(super) fn is_no_object(body: &[u8]) -> bool {
    !body.trim_ascii_start().starts_with(b"{")
}

/// Of an error about flat JSON: how it is written.
pub(super) fn of_flat(error: Error, config: &ModelConfig) -> Error {
    error.with_hint(&format!(": expected an object{}", flat_example(config)))
}

fn flat_example(config: &ModelConfig) -> String {
    let example =
        openapi::generate_example(config).map(|it| it.to_string()).filter(|it| is_short(it));
    example.map_or_else(String::new, |it| format!(", like {it}"))
}

fn is_short(example: &str) -> bool {
    example.len() <= MAX_EXAMPLE_BYTES
}
