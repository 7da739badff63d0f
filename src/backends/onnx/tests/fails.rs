//! Files that are no models, and configs that ask for what nobody has.

use super::*;
use troupe_base::error::ErrorKind;

#[test]
fn a_broken_file_is_named_with_the_librarys_reason() {
    let whole = fs::read(place("add_sub_fp32").model_dir.join("1/model.onnx")).unwrap();
    let home = env::current_exe().unwrap().parent().unwrap().join("onnx-tests");
    let home = home.join(format!("broken-{}", std::process::id()));
    fs::create_dir_all(home.join("1")).unwrap();
    let place = ModelFiles { name: "m".into(), model_dir: home.clone(), version: 1 };
    let path = home.join("1/model.onnx");
    let config = config::json::print(&draft("").proto);
    for contents in [&b"garbage"[..], &whole[..whole.len() / 2], b""] {
        fs::write(&path, contents).unwrap();
        let error = complete(&settings(), &place, &config).unwrap_err();
        let text = error.to_string();
        let expected = format!(
            "unable to load model 'm' version 1 from '{}': onnx runtime error ",
            path.display()
        );
        assert!(text.starts_with(&expected) && expected.len() + 5 < text.len(), "{text}");
    }
    fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_model_of_the_future_is_named_with_the_librarys_reason() {
    let text = load_error("future_opset", "");
    assert!(text.starts_with("unable to load model 'm' version 1 from '"), "{text}");
    assert!(text.contains("future_opset/1/model.onnx': onnx runtime error"), "{text}");
    assert!(text.contains("999"), "{text}");
}

#[test]
fn a_missing_file_is_named() {
    let missing = place("no such model");
    let text = "input { name: 'X' data_type: TYPE_FP32 dims: [1] }
                output { name: 'Y' data_type: TYPE_FP32 dims: [1] }";
    for config in [draft("default_model_filename: 'other.onnx'"), draft(text)] {
        let name = config.proto.default_model_filename.clone();
        let name = if name.is_empty() { "model.onnx" } else { &name };
        let path = missing.model_dir.join("1").join(name);
        let error = opened_at(&missing, config).unwrap_err();
        let expected = format!(
            "unable to find '{}' for model instance 'm': there is no folder '{}'",
            path.display(),
            missing.model_dir.join("1").display()
        );
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Unavailable, expected));
    }
}

fn opened_at(place: &ModelFiles, draft: config::Draft) -> Result<()> {
    complete(&settings(), place, &config::json::print(&draft.proto))?;
    open(&settings(), place, finish(draft)).map(drop)
}

#[test]
fn wrong_parameters_are_refused_all_at_once_with_their_lines() {
    let text = [
        parameter("intra_op_thread_count", "-1"),
        parameter("inter_op_thread_count", "1e3"),
        parameter("execution_mode", "2"),
        parameter("enable_mem_arena", "maybe"),
        parameter("memory.enable_memory_arena_shrinkage", "cpu"),
        parameter("cudnn_conv_algo_search", "3"),
        parameter("gpu_mem_limit", "all"),
        "optimization { graph { level: 3 } }".to_owned(),
    ]
    .concat();
    let expected = [
        "optimization.graph.level of model 'm' is 3, expected -1 (basic), 0 (all), 1 (extended) or \
         2 (none) (config.pbtxt:9:24)",
        "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but \
         got 2 . (config.pbtxt:4:1)",
        "parameter 'intra_op_thread_count' of model 'm' is '-1', expected a number of threads from \
         0 to 1024 (config.pbtxt:2:1)",
        "parameter 'inter_op_thread_count' of model 'm' is '1e3', expected a number of threads \
         from 0 to 1024 (config.pbtxt:3:1)",
        "parameter 'enable_mem_arena' of model 'm' is 'maybe', expected 0, 1, false or true \
         (config.pbtxt:5:1)",
        "parameter 'memory.enable_memory_arena_shrinkage' of model 'm' is 'cpu', expected devices \
         as in `cpu:0` or `cpu:0;gpu:0` (config.pbtxt:6:1)",
        "parameter 'cudnn_conv_algo_search' of model 'm' is '3', expected a number from 0 to 2 \
         (config.pbtxt:7:1)",
        "parameter 'gpu_mem_limit' of model 'm' is 'all', expected a number of bytes \
         (config.pbtxt:8:1)",
    ];
    assert_eq!(load_error("add_sub_fp32", &text), expected.join("; "));
}

/// `optimization` with one accelerator.
fn accelerator(kind: &str, name: &str, parameters: &str) -> String {
    format!(
        "optimization {{ execution_accelerators {{ {kind}_execution_accelerator {{ name: '{name}' \
         {parameters} }} }} }}"
    )
}

#[test]
fn accelerators_nobody_knows_are_refused() {
    let strange = "parameters { key: 'speed' value: 'high' }";
    let precise = "parameters { key: 'precision_mode' value: 'FP1' }";
    for (text, expected) in [
        (accelerator("gpu", "warp", ""), "unknown Execution Accelerator 'warp' is requested"),
        (accelerator("cpu", "cuda", ""), "unknown Execution Accelerator 'cuda' is requested"),
        (
            accelerator("gpu", "tensorrt", strange),
            "unknown parameter 'speed' is provided for TensorRT Execution Accelerator",
        ),
        (accelerator("gpu", "tensorrt", precise), "unsupported precision mode 'FP1' is requested"),
    ] {
        let error = load_error("add_sub_fp32", &text);
        assert!(error.starts_with(expected) && error.contains("config.pbtxt:2"), "{error}");
    }
}

#[test]
fn accelerators_are_refused_with_the_librarys_reason() {
    for (kind, name, provider) in [
        ("gpu", "cuda", "CUDAExecutionProvider"),
        ("gpu", "tensorrt", "TensorrtExecutionProvider"),
        ("cpu", "openvino", "OpenVINOExecutionProvider"),
    ] {
        let error = load_error("add_sub_fp32", &accelerator(kind, name, ""));
        let expected = format!("model 'm', instance 'm_0_0': ONNX Runtime has no {provider}: ");
        // A library with CUDA says that no instance is on a GPU.
        let on_gpus = "model 'm' names a gpu_execution_accelerator, but none of its instances is \
                       KIND_GPU";
        let is_so = error.starts_with(&expected) && expected.len() + 5 < error.len();
        assert!(is_so || (kind == "gpu" && error == on_gpus), "{error}");
    }
}

#[test]
fn a_global_threadpool_is_refused() {
    let mut settings = settings();
    let key = ("onnxruntime".to_owned(), "enable-global-threadpool".to_owned());
    let place = place("add_sub_fp32");
    let config = finish(draft(""));
    for (value, is_refused) in [("0", false), ("false", false), ("1", true)] {
        settings.options.insert(key.clone(), value.into());
        let error = prepare(&settings, &place, config.clone()).err();
        assert_eq!(error.map(|it| it.kind()), is_refused.then_some(ErrorKind::Unsupported));
    }
}
