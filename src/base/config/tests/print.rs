//! How configurations look to clients.

use super::super::{json, read_json, read_text};
use super::{ServerFeatures, good};

#[test]
fn a_model_prints_with_its_defaults() {
    let config = good(
        "name: 'm' backend: 'python' max_batch_size: 8 input { name: 'a' data_type: TYPE_FP32 dims: [ 3, -1 ] } output { name: 'b' data_type: TYPE_STRING dims: 1 }",
    );
    let expected = concat!(
        r#"{"name":"m","platform":"","backend":"python","runtime":"","#,
        r#""version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,"#,
        r#""input":[{"name":"a","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[3,-1],"#,
        r#""is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"#,
        r#""is_non_linear_format_io":false}],"#,
        r#""output":[{"name":"b","data_type":"TYPE_STRING","dims":[1],"label_filename":"","#,
        r#""is_shape_tensor":false,"is_non_linear_format_io":false}],"#,
        r#""batch_input":[],"batch_output":[],"#,
        r#""optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"#,
        r#""output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"#,
        r#""eager_batching":false},"#,
        r#""instance_group":[{"name":"m","kind":"KIND_CPU","count":1,"gpus":[],"#,
        r#""secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],"#,
        r#""default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},"#,
        r#""parameters":{},"model_warmup":[]}"#,
    );
    assert_eq!(json::print(&config.proto), expected);
}

#[test]
fn an_ensemble_prints_its_steps_with_plain_numbers() {
    let config = good(
        "name: 'm' platform: 'ensemble' input { name: 'a' data_type: TYPE_FP32 dims: 1 } output { name: 'b' data_type: TYPE_FP32 dims: 1 } ensemble_scheduling { step { model_name: 'n' input_map { key: 'x' value: 'a' } output_map { key: 'y' value: 'b' } } }",
    );
    let text = json::print(&config.proto);
    let steps = r#""ensemble_scheduling":{"step":[{"model_name":"n","model_version":-1,"input_map":{"x":"a"},"output_map":{"y":"b"},"model_namespace":""}],"max_inflight_requests":0}"#;
    assert!(text.contains(steps), "{text}");
    for absent in ["dynamic_batching", "sequence_batching", "optimization", "response_cache"] {
        assert!(!text.contains(absent), "{text}");
    }
}

#[test]
fn the_largest_numbers_and_strange_strings_survive() {
    let draft = read_text(
        r#"name: "a\"\\\n\001é" dynamic_batching { priority_levels: 18446744073709551615 }
        input { dims: -9223372036854775808 }
        metric_tags [ { key: "z" value: "1" }, { key: "a" value: "2" } ]"#,
        "f",
    )
    .unwrap();
    let text = json::print(&draft.proto);
    assert!(text.contains(r#""priority_levels":18446744073709551615"#), "{text}");
    assert!(text.contains(r#""dims":[-9223372036854775808]"#), "{text}");
    assert!(text.contains(r#""metric_tags":{"a":"2","z":"1"}"#), "{text}");
    assert!(text.starts_with(r#"{"name":"a\"\\\n\u0001é","#), "{text}");
    assert_eq!(read_json(&text, "f").unwrap().proto, draft.proto);
}

#[test]
fn what_is_printed_is_the_same_configuration() {
    let text = "name: 'm' backend: 'python' instance_group { count: 2 } parameters { key: 'k' value { string_value: 'v' } }";
    let config = good(text);
    let again = read_json(&json::print(&config.proto), "f").unwrap();
    assert_eq!(again.finish(&ServerFeatures::default()).unwrap().proto, config.proto);
}
