//! What directories and backends add to a configuration, and JSON as another way to write one.

use super::super::{AutoComplete, CompletionSource, Draft};
use super::{Problem, ServerFeatures, read_json, read_text};
use troupe_proto::inference::{DataType, ModelInput, ModelOutput};

/// `name platform backend file` of a text completed from the directory `d` with these files.
fn deduced(text: &str, directory: &str, files: &[&str]) -> Result<[String; 4], Vec<Problem>> {
    let mut draft = read_text(text, "f").unwrap();
    draft.complete_from_directory(directory, files)?;
    let it = draft.proto;
    Ok([it.name, it.platform, it.backend, it.default_model_filename])
}

#[test]
fn the_files_of_a_version_say_which_backend_runs_them() {
    for (text, directory, files, expected) in [
        (
            "",
            "d",
            &["model.onnx"] as &[&str],
            ["d", "onnxruntime_onnx", "onnxruntime", "model.onnx"],
        ),
        ("", "d", &["helper.py", "model.py"], ["d", "", "python", "model.py"]),
        (
            "",
            "d",
            &["model.py", "model.onnx"],
            ["d", "onnxruntime_onnx", "onnxruntime", "model.onnx"],
        ),
        ("", "d", &["model.pt"], ["d", "pytorch_libtorch", "pytorch", "model.pt"]),
        ("", "d", &["model.pt2"], ["d", "torch_aoti", "pytorch", "model.pt2"]),
        ("", "d", &["model.plan"], ["d", "tensorrt_plan", "tensorrt", "model.plan"]),
        ("", "d", &["model.xml"], ["d", "", "openvino", "model.xml"]),
        ("", "model.mine", &[], ["model.mine", "", "mine", ""]),
        ("backend: 'python'", "d", &["model.onnx"], ["d", "", "python", "model.py"]),
        (
            "platform: 'onnxruntime_onnx'",
            "d",
            &[],
            ["d", "onnxruntime_onnx", "onnxruntime", "model.onnx"],
        ),
        (
            "default_model_filename: 'net.onnx'",
            "d",
            &["net.onnx"],
            ["d", "onnxruntime_onnx", "onnxruntime", "net.onnx"],
        ),
        ("name: 'd' platform: 'ensemble'", "d", &["model.py"], ["d", "ensemble", "", ""]),
    ] {
        assert_eq!(deduced(text, directory, files).unwrap(), expected, "{text} {files:?}");
    }
}

#[test]
fn a_directory_that_says_nothing_or_something_else_is_a_problem() {
    let problems = deduced("\nname: 'm'", "d", &[]).unwrap_err();
    let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
    assert_eq!(
        texts,
        [
            "f:2:1: unexpected directory name 'd' for model 'm', directory name must equal model name: rename the folder or the name",
            "f: Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. Expected model name of the form 'model.<backend_name>'.",
        ]
    );
}

fn tensor(name: &str, data_type: DataType, dims: &[i64]) -> ModelInput {
    let (name, data_type) = (name.into(), data_type.into());
    ModelInput { name, data_type, dims: dims.into(), ..Default::default() }
}

fn output(name: &str, data_type: DataType, dims: &[i64]) -> ModelOutput {
    let (name, data_type) = (name.into(), data_type.into());
    ModelOutput { name, data_type, dims: dims.into(), ..Default::default() }
}

fn found(source: CompletionSource) -> AutoComplete {
    AutoComplete {
        source,
        inputs: vec![tensor("x", DataType::TypeFp32, &[4]), tensor("y", DataType::TypeInt8, &[1])],
        outputs: vec![output("z", DataType::TypeFp32, &[4])],
        max_batch_size: Some(4),
        dynamic_batching: true,
        decoupled: None,
    }
}

fn draft(text: &str) -> Draft {
    read_text(&format!("name: 'm' backend: 'python'\n{text}"), "f").unwrap()
}

#[test]
fn an_empty_configuration_takes_what_the_backend_found() {
    for source in [CompletionSource::ModelFile, CompletionSource::Python] {
        let mut draft = draft("");
        draft.auto_complete(found(source)).unwrap();
        let config = draft.finish(&ServerFeatures::default()).unwrap();
        assert_eq!(config.inputs.len(), 2);
        assert_eq!(config.outputs[0].dims, [4]);
        assert_eq!(config.max_batch_size, 4);
        assert!(matches!(config.batching, super::Batching::Dynamic(it) if it.preferred == [4]));
    }
}

#[test]
fn a_model_file_only_fills_gaps() {
    let mut draft = draft("max_batch_size: 8 input { name: 'x' dims: [ -1 ] }");
    draft.auto_complete(found(CompletionSource::ModelFile)).unwrap();
    assert_eq!(draft.proto.input, [tensor("x", DataType::TypeFp32, &[-1])]);
    assert_eq!(draft.proto.output, [output("z", DataType::TypeFp32, &[4])]);
    assert_eq!(draft.proto.max_batch_size, 8);
}

#[test]
fn a_script_adds_tensors_but_may_not_contradict() {
    let mut agreeing = draft("max_batch_size: 2 input { name: 'x' data_type: TYPE_FP32 }");
    agreeing.auto_complete(found(CompletionSource::Python)).unwrap();
    assert_eq!(agreeing.proto.input, found(CompletionSource::Python).inputs);
    assert_eq!(agreeing.proto.max_batch_size, 4);

    let mut contrary = draft(
        "max_batch_size: 6\ninput { name: 'x' data_type: TYPE_INT32 dims: 16 }\nsequence_batching { }\nmodel_transaction_policy { }",
    );
    let mut found = found(CompletionSource::Python);
    found.inputs[0].optional = true;
    found.decoupled = Some(true);
    let problems = contrary.auto_complete(found).unwrap_err();
    let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
    assert_eq!(
        texts,
        [
            "f:2:1: configuration specified max_batch_size 6, but in auto-complete-config function for model 'm' specified max_batch_size 4",
            "f:4:1: Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for model 'm' tries to set scheduling_choice as 'dynamic_batching'",
            "f:3:1: model 'm', tensor 'x': the model expects optional True but the model configuration specifies optional False",
            "f:3:19: unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
            "f:3:41: model 'm', tensor 'x': the model expects dims [4] but the model configuration specifies dims [16]",
            "f:5:1: trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'",
        ]
    );
}

#[test]
fn a_configuration_may_come_as_json() {
    let text = r#"{"name": "m", "backend": "python", "max_batch_size": 4, "input":
        [{"name": "x", "data_type": "TYPE_FP32", "dims": [4, "-1"]}], "dynamic_batching": {}}"#;
    let config = read_json(text, "config").unwrap().finish(&ServerFeatures::default()).unwrap();
    assert_eq!(config.inputs[0].dims, [4, -1]);
    for (text, expected) in [
        ("{\"name\": }", "config: Invalid config override: expected value at line 1 column 10"),
        ("{} x", "config: Invalid config override: trailing characters at line 1 column 4"),
        ("{\"max_batch_size\": \"many\"}", "config: Invalid config override: "),
        ("{\"nme\": \"m\"}", "config: Invalid config override: "),
    ] {
        let problems = read_json(text, "config").unwrap_err();
        assert!(problems[0].to_string().starts_with(expected), "{}", problems[0]);
    }
}
