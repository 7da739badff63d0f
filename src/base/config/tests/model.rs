//! What is said about models that run themselves.

use std::time::Duration;

use super::super::{
    Batching, DynamicBatching, InstanceGroup, InstanceKind, ModelConfig, PriorityLevels,
    RateLimits, RateResource, VersionPolicy,
};
use super::{ServerFeatures, check, good, read_text};
use crate::tensor::DataType;

/// A sound Python model on line 1, and more on line 2.
fn python(more: &str) -> String {
    format!("name: 'm' backend: 'python'\n{more}")
}

/// An input on line 2 of a model that does not batch.
fn input(fields: &str) -> String {
    python(&format!("input {{ {fields} }}"))
}

#[test]
fn a_minimal_model_gets_every_default() {
    let config = good(&python(""));
    assert_eq!(&*config.name, "m");
    assert_eq!(config.max_batch_size, 0);
    assert_eq!(config.version_policy, VersionPolicy::Latest(1));
    assert_eq!(config.batching, Batching::Direct);
    assert_eq!(config.default_model_filename, "model.py");
    let group = InstanceGroup {
        name: "m".into(),
        count: 1,
        is_default_count: true,
        kind: InstanceKind::Cpu,
        is_auto: true,
        gpus: vec![],
        passive: false,
        rate_limits: RateLimits::default(),
        scaling: None,
    };
    assert_eq!(config.instance_groups, [group]);
    assert!(config.ensemble.is_none() && !config.decoupled);
}

#[test]
fn a_full_model_is_read() {
    let config = good(
        r#"
        name: "m" platform: "onnxruntime_onnx" max_batch_size: 8
        input [ { name: "a" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, -1 ] optional: true } ]
        output { name: "b" data_type: TYPE_STRING dims: 1 reshape { } label_filename: "labels/b.txt" }
        version_policy { specific { versions: [ 1, 3 ] } }
        dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 preserve_ordering: true }
        instance_group [ { count: 3 }, { kind: KIND_MODEL passive: true name: "x" } ]
        parameters { key: "k" value { string_value: "v" } }
        metric_tags { key: "t" value: "1" }
        model_transaction_policy { decoupled: false }
        response_cache { enable: false }
        optimization { priority: PRIORITY_MAX eager_batching: true input_pinned_memory { enable: false } graph { } cuda { graphs: false } }"#,
    );
    assert_eq!(config.backend, "onnxruntime");
    assert_eq!(config.default_model_filename, "model.onnx");
    assert_eq!((config.input_index("a"), config.input_index("b")), (Some(0), None));
    assert_eq!((config.output_index("b"), config.output_index("a")), (Some(0), None));
    assert_eq!(config.full_dims(&config.inputs[0]), [-1, 3, -1, -1]);
    assert!(config.inputs[0].optional);
    assert_eq!(config.outputs[0].dtype, DataType::Bytes);
    assert_eq!(config.outputs[0].reshape, Some(vec![]));
    assert_eq!(config.outputs[0].label_filename, "labels/b.txt");
    assert_eq!(config.version_policy, VersionPolicy::Specific(vec![1, 3]));
    let batching = DynamicBatching {
        preferred: vec![4, 8],
        max_queue_delay: Duration::from_micros(100),
        preserve_ordering: true,
        queues: PriorityLevels::default(),
    };
    assert_eq!(config.batching, Batching::Dynamic(batching));
    let groups: Vec<_> = config
        .instance_groups
        .iter()
        .map(|it| (&*it.name, it.count, it.kind, it.passive))
        .collect();
    assert_eq!(groups, [("m_0", 3, InstanceKind::Cpu, false), ("x", 1, InstanceKind::Model, true)]);
    assert_eq!(config.parameters["k"], "v");
    assert_eq!(config.metric_tags["t"], "1");
    assert_eq!(config.source_map.locate("parameters[\"k\"]").line, 8);
}

#[test]
fn a_batching_model_prefers_full_batches_and_onnx_runs_twice_on_a_cpu() {
    let text = "name: 'm' backend: 'onnxruntime' max_batch_size: 8 dynamic_batching { }";
    let config = good(text);
    assert!(matches!(config.batching, Batching::Dynamic(it) if it.preferred == [8]));
    assert_eq!(config.instance_groups[0].count, 2);
    assert_eq!(config.platform, "onnxruntime_onnx");
    let config = good(&python("dynamic_batching { }"));
    assert!(matches!(config.batching, Batching::Dynamic(it) if it.preferred.is_empty()));
}

#[test]
fn a_model_has_a_sound_number_of_instances() {
    let expected = |count: &str| {
        format!(
            "2:18: instance group m_0 of model m has count {count}, expected a number from 1 on and \
             at most 1024 instances of a model in all"
        )
    };
    for count in ["-1", "-2147483648", "1025", "2147483647"] {
        let text = python(&format!("instance_group {{ count: {count} }}"));
        check(&text, &[&expected(count)]);
    }
    assert_eq!(good(&python("instance_group { count: 1024 }")).instance_groups[0].count, 1024);
    assert_eq!(good(&python("instance_group { count: 0 }")).instance_groups[0].count, 1);
    let two = python("instance_group [ { count: 1000 }, { count: 25 } ]");
    assert!(read_text(&two, "f").unwrap().finish(&ServerFeatures::default()).is_err());
}

#[test]
fn a_model_has_a_name_and_someone_who_runs_it() {
    check("backend: 'python'", &["f: model configuration must specify 'name'"]);
    check("name: 'm'", &["f: must specify 'platform' or 'backend' for 'm'"]);
    check(
        "name: 'm' platform: 'caffe'",
        &[
            "1:11: unexpected platform type 'caffe' for m: what runs a model is its 'backend'; a platform may be left out",
        ],
    );
    for (platform, hint) in [
        ("onnxruntime_onx", ", did you mean `onnxruntime_onnx`?"),
        ("ensembl", ", did you mean `ensemble`?"),
        ("onnx", ": write `backend: \"onnxruntime\"` in its place"),
        ("python", ": write `backend: \"python\"` in its place"),
    ] {
        let text = format!("1:11: unexpected platform type '{platform}' for m{hint}");
        check(&format!("name: 'm' platform: '{platform}'"), &[&text]);
    }
    check(
        "name: 'm' platform: 'onnxruntim' backend: 'onnxruntime'",
        &["1:11: unexpected 'platform' and 'backend' pair, got:onnxruntim, onnxruntime"],
    );
    check(
        "name: 'm' platform: 'onnxruntime_onnx' backend: 'python'",
        &["1:11: unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, python"],
    );
    check("name: 'm' backend: 'mine'", &[]);
    check("name: 'm' backend: 'mine' platform: 'my_own'", &[]);
}

#[test]
fn batch_sizes_are_sound() {
    check(
        &python("max_batch_size: -1"),
        &["2:1: 'max_batch_size' must be non-negative value for m"],
    );
    check(
        &python("max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 0, 2, 8 ] }"),
        &[
            "2:38: dynamic batching preferred size must be positive for m",
            "2:38: dynamic batching preferred size must be <= max batch size for m",
        ],
    );
}

#[test]
fn tensors_say_what_they_are() {
    check(&input("data_type: TYPE_FP32 dims: 1"), &["2:1: model input must specify 'name' for m"]);
    check(
        &input("name: 'x'"),
        &[
            "2:1: model input 'x' must specify 'data_type' for m",
            "2:1: model input 'x' must specify 'dims' for m",
        ],
    );
    check(
        &input("name: 'x' data_type: TYPE_INVALID dims: [ 1, 0 ]"),
        &[
            "2:19: model input 'x' must specify 'data_type' for m",
            "2:43: model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ],
    );
    check(
        &input("name: 'x' data_type: TYPE_FP32 dims: 1 format: FORMAT_NHWC"),
        &["2:48: model input NHWC/NCHW require 3 dims for m"],
    );
    check(
        &input("name: 'x' data_type: TYPE_FP32 dims: 1 is_shape_tensor: true"),
        &["2:48: shape tensors are only supported for TensorRT platform for m"],
    );
    check(
        &python("output { name: 'y' dims: -2 is_non_linear_format_io: true }"),
        &[
            "2:1: model output 'y' must specify 'data_type' for m",
            "2:20: model output 'y' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
            "2:29: Non-linear IO format is only supported for the TensorRT platform for m",
        ],
    );
    let twice = "input { name: 'x' data_type: TYPE_FP32 dims: 1 }".repeat(2);
    check(&python(&twice), &["2:57: model input 'x' is specified more than once for m"]);
}

#[test]
fn a_reshape_keeps_the_elements() {
    let reshape = |dims: &str, shape: &str, max_batch_size: u32| {
        let tensor = format!("name: 'x' data_type: TYPE_FP32 dims: [{dims}]");
        python(&format!(
            "output {{ {tensor}\nreshape {{ shape: [{shape}] }} }} max_batch_size: {max_batch_size}"
        ))
    };
    for (dims, shape, batch) in [
        ("4", "2,2", 0),
        ("2,2", "4", 8),
        ("1", "", 8),
        ("2,4,-1,6", "8,-1,1,6", 0),
        ("-1", "-1,1", 0),
    ] {
        check(&reshape(dims, shape, batch), &[]);
    }
    let size = "3:1: model output 'x' has different size for dims and reshape for m";
    for (dims, shape) in
        [("4", "5"), ("4", "-1"), ("-1", "4"), ("2,-1", "-1,2"), ("9223372036854775807,2", "1")]
    {
        check(&reshape(dims, shape, 8), &[size]);
    }
    check(
        &reshape("-1,-1", "-1", 8),
        &[
            "3:1: model output 'x' has different number of variable-size dimensions for dims and reshape for m",
        ],
    );
    check(
        &reshape("1", "", 0),
        &[
            "3:1: model output 'x' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
        ],
    );
    check(
        &reshape("4", "0", 0),
        &[
            "3:11: model output 'x' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ],
    );
}

#[test]
fn labels_stay_inside_the_model() {
    let labels = |file: &str| {
        let tensor = "name: 'y' data_type: TYPE_FP32 dims: 1";
        python(&format!("output {{ {tensor}\nlabel_filename: '{file}' }}"))
    };
    for file in ["", "labels.txt", "a/../b.txt", "./a.txt"] {
        check(&labels(file), &[]);
    }
    for file in ["/etc/passwd", "../labels.txt", "a/../../b.txt"] {
        let text = format!(
            "3:1: label file path '{file}' for output 'y' in model 'm' is outside model directory"
        );
        check(&labels(file), &[&text]);
    }
}

#[test]
fn instances_run_on_what_the_server_has() {
    check(
        &python("instance_group { kind: KIND_GPU }"),
        &["2:18: instance group m_0 of model m has kind KIND_GPU but server does not support GPUs"],
    );
    check(
        &python("instance_group { kind: KIND_CPU gpus: 0 }"),
        &["2:33: instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"],
    );
    check(
        &python("instance_group { name: 'g' kind: KIND_MODEL gpus: 0 }"),
        &["2:45: instance group g of model m has kind KIND_MODEL but specifies one or more GPUs"],
    );
}

/// Finishes a Python model on a server with a driver and these GPUs.
fn finish_on(gpus: fn() -> Option<&'static [i32]>, fields: &str) -> Result<ModelConfig, String> {
    let draft = read_text(&python(fields), "f").unwrap();
    draft.finish(&ServerFeatures { gpus }).map_err(|problems| problems[0].text.clone())
}

#[test]
fn groups_that_leave_it_open_run_on_gpus_if_there_are_any() {
    for (group, kind, gpus, is_auto) in [
        ("", InstanceKind::Gpu, vec![0, 1], true),
        ("instance_group { gpus: 1 }", InstanceKind::Gpu, vec![1], true),
        ("instance_group { kind: KIND_GPU }", InstanceKind::Gpu, vec![0, 1], false),
        ("instance_group { kind: KIND_CPU }", InstanceKind::Cpu, vec![], false),
    ] {
        let config = finish_on(|| Some(&[0, 1]), group).unwrap();
        let found = &config.instance_groups[0];
        assert_eq!((found.kind, &found.gpus, found.is_auto), (kind, &gpus, is_auto), "{group}");
    }
}

#[test]
fn gpus_that_are_not_there_are_refused_in_tritons_words() {
    let on = "instance group m_0 of model m";
    let group = "instance_group { kind: KIND_GPU gpus: [ 1, 7 ] }";
    let text = format!(
        "{on} specifies invalid or unsupported gpu id 7. GPUs with at least the minimum required \
         CUDA compute compatibility of 6.000000 are: 0, 1"
    );
    assert_eq!(finish_on(|| Some(&[0, 1]), group).unwrap_err(), text);
    let text = format!("{on} has kind KIND_GPU but no GPUs are available");
    assert_eq!(finish_on(|| Some(&[]), "instance_group { kind: KIND_GPU }").unwrap_err(), text);
}

#[test]
fn native_models_run_on_the_cpu_and_ask_for_no_gpu() {
    let finish = |group: &str| {
        let text = format!("name: 'n' backend: 'native'\n{group}");
        let gpus = || panic!("the driver is not asked");
        read_text(&text, "f").unwrap().finish(&ServerFeatures { gpus })
    };
    assert_eq!(finish("").unwrap().instance_groups[0].kind, InstanceKind::Cpu);
    assert_eq!(
        finish("instance_group { kind: KIND_GPU }").unwrap_err()[0].text,
        "instance group n_0 of model n has kind KIND_GPU but models of backend 'native' run on the \
         CPU only"
    );
}

#[test]
fn rate_limits_are_read_group_by_group() {
    let resources = "resources [ { name: 'R' count: 2 }, { name: 'G' global: true count: 1 } ]";
    let text = format!(
        "instance_group [ {{ rate_limiter {{ {resources} priority: 3 }} }}, {{ count: 2 }} ]"
    );
    let config = good(&python(&text));
    let resource = |name: &str, global, count| RateResource { name: name.into(), global, count };
    let resources = vec![resource("R", false, 2), resource("G", true, 1)];
    let groups = config.instance_groups.iter().map(|group| group.rate_limits.clone());
    let expected = [RateLimits { resources, priority: 3 }, RateLimits::default()];
    assert_eq!(groups.collect::<Vec<_>>(), expected);
    let shown = crate::config::json::print(&config.proto);
    let expected = r#""rate_limiter":{"resources":[{"name":"R","global":false,"count":2},{"name":"G","global":true,"count":1}],"priority":3}"#;
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn what_is_not_built_yet_is_refused_by_name() {
    for (field, name) in [
        ("model_repository_agents { agents { name: 'x' } }", "model_repository_agents"),
        ("model_operations { op_library_filename: 'x' }", "model_operations"),
        ("optimization { graph { level: 1 } }", "optimization.graph"),
        ("optimization { cuda { graphs: true } }", "optimization.cuda"),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' } } }",
            "optimization.execution_accelerators",
        ),
        ("instance_group { profile: '1' }", "instance_group.profile"),
        (
            "instance_group { secondary_devices { device_id: 1 } }",
            "instance_group.secondary_devices",
        ),
        ("instance_group { host_policy: 'x' }", "instance_group.host_policy"),
        ("runtime: 'x'", "runtime"),
        ("cc_model_filenames { key: '7.5' value: 'x' }", "cc_model_filenames"),
    ] {
        let problems = super::finish(&python(field)).unwrap_err();
        let texts: Vec<_> = problems.iter().map(|it| (it.position.line, &*it.text)).collect();
        assert_eq!(texts, [(2, &*format!("`{name}` is not supported yet"))], "{field}");
    }
}

#[test]
fn the_onnx_backend_looks_at_graph_and_accelerators_itself() {
    let onnx = |field: &str| format!("name: 'm' backend: 'onnxruntime'\n{field}");
    super::good(&onnx("optimization { graph { level: 7 } }"));
    let accelerators = "gpu_execution_accelerator { name: 'any' }";
    super::good(&onnx(&format!("optimization {{ execution_accelerators {{ {accelerators} }} }}")));
    let cuda = onnx("optimization { cuda { graphs: true } }");
    super::check(&cuda, &["2:16: `optimization.cuda` is not supported yet"]);
}
