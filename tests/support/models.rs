//! Writes configs from short descriptions: `a:FP32[4] b?:BYTES[-1] -> c:FP32[4]`.

use std::fmt::Write;

/// A config and what stands in its version folders.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// The text of config.pbtxt; empty: no such file.
    pub(crate) config: String,
    /// Names of version folders.
    pub(crate) versions: Vec<String>,
    /// The text of model.py.
    pub(crate) source: Option<String>,
}

impl Model {
    /// A config as it is, with version 1.
    pub(crate) fn of(config: impl Into<String>) -> Model {
        Model { config: config.into(), versions: vec!["1".to_owned()], source: None }
    }

    /// Adds text to the config.
    pub(crate) fn with(mut self, text: impl AsRef<str>) -> Model {
        self.config += text.as_ref();
        self.config.push('\n');
        self
    }

    /// Adds `max_batch_size`.
    pub(crate) fn batch(self, size: u32) -> Model {
        self.with(format!("max_batch_size: {size}"))
    }

    /// Adds an entry of `parameters`.
    pub(crate) fn parameter(self, key: &str, value: &str) -> Model {
        self.with(format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}"))
    }

    /// Replaces the version folders.
    pub(crate) fn versions(mut self, versions: &[&str]) -> Model {
        self.versions = versions.iter().map(|it| (*it).to_owned()).collect();
        self
    }
}

/// A model of the native backend.
pub(crate) fn native(op: &str, signature: &str) -> Model {
    Model::of(format!("backend: \"native\"\n{}", tensors(signature))).parameter("op", op)
}

/// A native identity that takes its time.
pub(crate) fn delay(milliseconds: u32, signature: &str) -> Model {
    native("delay_ms", signature).parameter("delay_ms", &milliseconds.to_string())
}

/// A model of the Python backend, numpy and `pb_utils` imported.
pub(crate) fn python(signature: &str, source: &str) -> Model {
    let header = "import json\nimport os\n\nimport numpy as np\n\n\
                  import triton_python_backend_utils as pb_utils\n\n\n";
    Model {
        source: Some(format!("{header}{}", undent(source))),
        ..Model::of(format!("backend: \"python\"\n{}", tensors(signature)))
    }
}

/// A Python model that has only `execute`, of which this is the body.
pub(crate) fn execute(signature: &str, body: &str) -> Model {
    let body: String = undent(body).lines().map(|it| format!("        {it}\n")).collect();
    python(
        signature,
        &format!("class TritonPythonModel:\n    def execute(self, requests):\n{body}"),
    )
}

/// A Python model that answers `y` with what it got as `x`.
pub(crate) fn same(signature: &str) -> Model {
    execute(
        signature,
        "
        get = pb_utils.get_input_tensor_by_name
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy())])
            for it in requests
        ]",
    )
}

/// An ensemble; a step is `model[@version]: input=tensor … -> output=tensor …`.
pub(crate) fn ensemble(signature: &str, steps: &[&str]) -> Model {
    let mut config = format!("platform: \"ensemble\"\n{}", tensors(signature));
    config += "ensemble_scheduling {\n";
    for step in steps {
        let (model, maps) = step.split_once(':').expect("a step names its model");
        let (name, version) = model.split_once('@').unwrap_or((model, "-1"));
        writeln!(config, "  step {{\n    model_name: \"{name}\"\n    model_version: {version}")
            .unwrap();
        let (inputs, outputs) = maps.split_once("->").expect("a step has outputs");
        for (map, entries) in [("input_map", inputs), ("output_map", outputs)] {
            for entry in entries.split_whitespace() {
                let (key, value) = entry.split_once('=').expect("an entry is key=value");
                writeln!(config, "    {map} {{ key: \"{key}\" value: \"{value}\" }}").unwrap();
            }
        }
        config += "  }\n";
    }
    Model::of(config + "}\n")
}

/// `a:FP32[4] b?:BYTES[-1,2] -> c:FP32[4]` as `input` and `output` messages.
pub(crate) fn tensors(signature: &str) -> String {
    let (inputs, outputs) = signature.split_once("->").expect("a signature has an arrow");
    let mut text = String::new();
    for (kind, side) in [("input", inputs), ("output", outputs)] {
        for tensor in side.split_whitespace() {
            let (name, rest) = tensor.split_once(':').expect("a tensor is name:TYPE[dims]");
            let (dtype, dims) = rest.split_once('[').expect("dims stand in brackets");
            let dtype = if dtype == "BYTES" { "STRING" } else { dtype };
            let plain = name.trim_end_matches('?');
            let optional = if plain == name { "" } else { " optional: true" };
            writeln!(
                text,
                "{kind} {{ name: \"{plain}\" data_type: TYPE_{dtype} dims: [{dims}{optional} }}"
            )
            .unwrap();
        }
    }
    text
}

/// Source in a test is indented as the test is.
pub(crate) fn undent(source: &str) -> String {
    let lines = || source.lines().filter(|it| !it.trim().is_empty());
    let indent = |line: &str| line.len() - line.trim_start().len();
    let least = lines().map(indent).min().unwrap_or(0);
    source.lines().map(|it| format!("{}\n", it.get(least..).unwrap_or(""))).collect()
}

#[test]
fn short_descriptions_are_written_out() {
    let config = ensemble("A:BYTES[-1,2] B?:FP32[4] -> C:INT8[]", &["m@3: x=A -> y=C"]).config;
    for expected in [
        "input { name: \"A\" data_type: TYPE_STRING dims: [-1,2] }",
        "input { name: \"B\" data_type: TYPE_FP32 dims: [4] optional: true }",
        "output { name: \"C\" data_type: TYPE_INT8 dims: [] }",
        "model_version: 3",
        "output_map { key: \"y\" value: \"C\" }",
    ] {
        assert!(config.contains(expected), "{expected} is not in\n{config}");
    }
    assert_eq!(undent("\n    a\n      b\n"), "\na\n  b\n");
}

/// Every data type, with bytes of two elements that are easily spoiled.
pub(crate) const TYPES: &[(&str, &[u8])] = &[
    ("BOOL", &[1, 0]),
    ("UINT8", &[1, 255]),
    ("UINT16", &[1, 0, 255, 255]),
    ("UINT32", &[1, 0, 0, 0, 255, 255, 255, 255]),
    ("UINT64", &[1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]),
    ("INT8", &[1, 128]),
    ("INT16", &[1, 0, 0, 128]),
    ("INT32", &[1, 0, 0, 0, 0, 0, 0, 128]),
    ("INT64", &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128]),
    ("FP16", &[0, 60, 1, 0]),
    ("BF16", &[128, 63, 1, 0]),
    ("FP32", &[0, 0, 192, 127, 0, 0, 128, 255]),
    ("FP64", &[0, 0, 0, 0, 0, 0, 240, 63, 0, 0, 0, 0, 0, 0, 248, 127]),
    ("BYTES", &[2, 0, 0, 0, 0, 255, 0, 0, 0, 0]),
];
