//! The OpenAPI document of the HTTP API: what every server has, and every ready model with its inputs.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{ServerState, examples, metadata};
use troupe_base::{
    config::{Input, ModelConfig},
    model::Model,
    tensor::DataType,
    text::encode_path_segment,
};

/// The newest ready version of each model.
pub(crate) fn newest_models(state: &ServerState) -> Vec<Arc<Model>> {
    let catalog = state.repository.catalog.load();
    catalog.entries.keys().filter_map(|name| catalog.get(name, None).ok()).collect()
}

/// The document of OpenAPI 3.1.
pub(crate) fn document(state: &ServerState) -> Value {
    let mut paths = of_the_server();
    for model in newest_models(state) {
        of_model(&model, &mut paths);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": state.settings.server_id,
            "version": metadata::VERSION,
            "description": "KServe's inference protocol, version 2, with Triton's extensions; \
                            served by troupe.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {"type": "string", "description": "why the request failed"},
                "troupe": {"type": "object", "description": "the step of an ensemble that failed"},
            },
        }}},
    })
}

fn of_the_server() -> Map<String, Value> {
    let model = || {
        json!({
            "name": "model", "in": "path", "required": true, "schema": {"type": "string"},
        })
    };
    let rows = [
        ("/v2/health/live", "get", "health", "Whether the process works", false),
        ("/v2/health/ready", "get", "health", "Whether all models can take requests", false),
        ("/v2", "get", "metadata", "What this server is", false),
        ("/v2/models", "get", "metadata", "All models: state, versions, and why not ready", false),
        ("/v2/models/{model}", "get", "metadata", "Inputs and outputs of a model", true),
        ("/v2/models/{model}/ready", "get", "health", "Whether a model takes requests", true),
        ("/v2/models/{model}/config", "get", "metadata", "The completed config of a model", true),
        ("/v2/models/{model}/stats", "get", "statistics", "Counters of a model", true),
        ("/v2/models/stats", "get", "statistics", "Counters of all models", false),
        ("/v2/repository/index", "post", "repository", "All versions of all models", false),
        ("/v2/repository/models/{model}/load", "post", "repository", "Loads a model", true),
        ("/v2/repository/models/{model}/unload", "post", "repository", "Unloads a model", true),
    ];
    let path = |(path, method, tag, summary, has_model): (&str, &str, &str, &str, bool)| {
        let mut operation = json!({
            "tags": [tag], "summary": summary, "operationId": format!("{method} {path}"),
            "responses": {"200": {"description": "the answer"}, "default": failure()},
        });
        if has_model {
            operation["parameters"] = json!([model()]);
        }
        (path.to_owned(), json!({ method: operation }))
    };
    rows.into_iter().map(path).collect()
}

fn failure() -> Value {
    json!({
        "description": "a failure",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    })
}

fn of_model(model: &Model, paths: &mut Map<String, Value>) {
    let config = &*model.config;
    let base = format!("/v2/models/{}", encode_path_segment(model.name()));
    let tag = format!("model {}", model.name());
    let mut add = |end: &str, summary: &str, body: Value, answer: Value| {
        let operation = json!({
            "tags": [tag], "summary": summary, "operationId": format!("{end} {}", model.name()),
            "requestBody": {"required": true, "content": {"application/json": body}},
            "responses": {"200": {"description": "the answer", "content": answer}, "default": failure()},
        });
        paths.insert(format!("{base}/{end}"), json!({ "post": operation }));
    };
    let has_json = has_json(config);
    if !config.decoupled && has_json {
        let answer = json!({"application/json": {"schema": infer_answer(config)}});
        add("infer", "Asks the model", infer_body(config), answer);
        let answer = json!({"application/json": {"schema": {"type": "object"}}});
        add("generate", "Asks the model with flat JSON", generate_body(config), answer);
    }
    if has_json {
        let answer = json!({"text/event-stream": {"schema": {"type": "string"}}});
        add(
            "generate_stream",
            "Asks the model, one event a response",
            generate_body(config),
            answer,
        );
    }
}

/// Numbers of 16 bits have no JSON in this protocol.
pub(crate) fn has_json(config: &ModelConfig) -> bool {
    config.inputs.iter().all(|it| !matches!(it.dtype, DataType::Fp16 | DataType::Bf16))
}

/// A request that the model takes; `None` if it is too large to be written, or of a file.
pub(crate) fn infer_example(config: &ModelConfig) -> Option<InferExample> {
    let input = |it: &Input| {
        Some(ExampleInput {
            name: it.name.to_string(),
            datatype: it.dtype.as_str(),
            shape: examples::shape(config, it),
            data: example(config, it)?,
        })
    };
    let inputs: Option<Vec<_>> = required(config).map(input).collect();
    Some(InferExample { inputs: inputs? })
}

/// A request, its members in the order in which people write them.
#[derive(Serialize)]
pub(crate) struct InferExample {
    inputs: Vec<ExampleInput>,
}

#[derive(Serialize)]
struct ExampleInput {
    name: String,
    datatype: &'static str,
    shape: Vec<i64>,
    data: Vec<Value>,
}

/// The same as flat JSON.
pub(crate) fn generate_example(config: &ModelConfig) -> Option<Value> {
    let member = |it: &Input| {
        let mut data = example(config, it)?;
        let value = if data.len() == 1 { data.remove(0) } else { data.into() };
        Some((it.name.to_string(), value))
    };
    required(config).map(member).collect::<Option<Map<_, _>>>().map(Value::from)
}

fn example(config: &ModelConfig, input: &Input) -> Option<Vec<Value>> {
    examples::data(config, input).filter(|_| !examples::is_file(input))
}

fn required(config: &ModelConfig) -> impl Iterator<Item = &Input> {
    config.inputs.iter().filter(|it| !it.optional)
}

fn infer_body(config: &ModelConfig) -> Value {
    let one_of = |all: Vec<Value>| json!({"oneOf": all});
    let inputs: Vec<_> =
        config.inputs.iter().map(|it| tensor(&it.name, it.dtype, &config.full_dims(it))).collect();
    let outputs: Vec<_> = config.outputs.iter().map(|it| &*it.name).collect();
    let mut body = json!({"schema": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": {
                "type": "array", "minItems": required(config).count(), "maxItems": inputs.len(),
            },
            "outputs": {
                "type": "array",
                "description": "the outputs wanted; all when left out",
                "items": {
                    "type": "object", "required": ["name"],
                    "properties": {
                        "name": {"type": "string", "enum": outputs},
                        "parameters": {"type": "object"},
                    },
                },
            },
        },
    }});
    if !inputs.is_empty() {
        body["schema"]["properties"]["inputs"]["items"] = one_of(inputs);
    }
    if outputs.is_empty() {
        body["schema"]["properties"]["outputs"]["items"] = json!(false);
    }
    with_example(body, infer_example(config).map(|it| json!(it)))
}

fn with_example(mut body: Value, example: Option<Value>) -> Value {
    if let Some(example) = example {
        body["example"] = example;
    }
    body
}

fn tensor(name: &str, dtype: DataType, dims: &[i64]) -> Value {
    let dim = |it: &i64| match *it {
        ..0 => json!({"type": "integer", "minimum": 0}),
        size => json!({"const": size}),
    };
    let mut shape = json!({"type": "array", "minItems": dims.len(), "maxItems": dims.len()});
    if !dims.is_empty() {
        shape["prefixItems"] = dims.iter().map(dim).collect();
    }
    json!({
        "title": name,
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"const": name},
            "datatype": {"const": dtype.as_str()},
            "shape": shape,
            "data": {
                "type": "array",
                "description": "the elements in row-major order, in one list or in lists of lists",
                "items": {"anyOf": [element(dtype), {"type": "array"}]},
            },
            "parameters": {"type": "object"},
        },
    })
}

fn element(dtype: DataType) -> Value {
    match dtype {
        DataType::Bytes => json!({"type": "string"}),
        DataType::Bool => json!({"type": "boolean"}),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
            json!({"type": "number"})
        }
        _ => json!({"type": "integer"}),
    }
}

fn infer_answer(config: &ModelConfig) -> Value {
    let outputs = config.outputs.iter();
    let outputs: Vec<_> =
        outputs.map(|it| tensor(&it.name, it.dtype, &config.with_batch(&it.dims))).collect();
    let mut list = json!({"type": "array"});
    if !outputs.is_empty() {
        list["items"] = json!({"oneOf": outputs});
    }
    json!({
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": list,
        },
    })
}

fn generate_body(config: &ModelConfig) -> Value {
    let member = |it: &Input| {
        let element = element(it.dtype);
        let list = json!({"type": "array", "items": element});
        (it.name.to_string(), json!({"anyOf": [element, list]}))
    };
    let members: Map<_, _> = config.inputs.iter().map(member).collect();
    let required: Vec<_> = required(config).map(|it| &*it.name).collect();
    let schema = json!({
        "type": "object",
        "required": required,
        "properties": members,
        "additionalProperties": {"description": "a parameter of the request"},
    });
    with_example(json!({ "schema": schema }), generate_example(config))
}
