//! Shapes and counts that overflow, announce what never comes, or are too many: on every way in.

use std::sync::LazyLock;

use serde_json::{Value, json};
use tonic::Code;
use troupe_proto::inference::{
    ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

use crate::support::{
    Repository, Server, ensemble,
    grpc::{Grpc, floats},
    native,
    process::{memory_is_back, resident_mib},
};

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let identity = |signature: &str| native("identity", signature);
    let batching = "dynamic_batching { max_queue_delay_microseconds: 100 }";
    let any = "x:FP32[-1] -> y:FP32[-1]";
    Server::start(Repository::of([
        ("m", identity(any)),
        ("matrix", identity("x:FP32[-1,-1] -> y:FP32[-1,-1]")),
        ("batched", identity(any).batch(8).with(batching)),
        ("chain", ensemble(any, &["m: x=x -> y=t", "m: x=t -> y=y"])),
        ("doubles", identity("x:FP64[-1] -> y:FP64[-1]")),
        ("words", identity("x:BYTES[-1] -> y:BYTES[-1]")),
    ]))
});

/// Products and sums of these wrap in 32 or 64 bits, some of them to what was sent.
fn overflowing() -> Vec<Vec<i64>> {
    vec![
        vec![16, (1 << 60) + 2],
        vec![4, (1 << 60) + 2],
        vec![1 << 31, 1],
        vec![1 << 32, 1 << 32],
        vec![(1 << 62) + 1],
        vec![i64::MAX, i64::MAX],
        vec![-5],
        vec![-1, 4],
        vec![i64::MIN],
        vec![1; 65],
        vec![1; 5000],
    ]
}

fn over_grpc(model: &str, shape: &[i64], bytes: usize) -> ModelInferRequest {
    let mut request = floats(model, &[("x", &[])]);
    request.inputs[0].shape = shape.to_vec();
    request.raw_input_contents = vec![vec![0; bytes].into()];
    request
}

#[test]
fn cve_2025_23323_shapes_that_overflow_are_refused_on_every_way_in() {
    let mut grpc = Grpc::connect(SERVER.grpc);
    for shape in overflowing() {
        for model in ["m", "matrix", "batched", "chain"] {
            let shown = format!("{model} {:?}", &shape[..shape.len().min(4)]);
            let input = |more: Value| {
                let mut input = json!({"name": "x", "datatype": "FP32", "shape": shape});
                input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                json!({"inputs": [input]})
            };
            let as_json = SERVER.infer(model, &input(json!({"data": [1.0]})));
            assert_eq!(as_json.status, 400, "{shown}: {}", as_json.text());
            // What the product wraps to is sent.
            for size in [0, 4, 128] {
                let json = input(json!({"parameters": {"binary_data_size": size}}));
                let binary = SERVER.http.infer_binary(model, &json, &[&vec![0; size]]);
                assert_eq!(binary.status, 400, "{shown}: {}", binary.text());
                let request = over_grpc(model, &shape, size);
                let told = grpc.stream(vec![request.clone()]).unwrap().remove(0).error_message;
                let status = grpc.infer(request).unwrap_err();
                assert_eq!(status.code(), Code::InvalidArgument, "{shown}: {status}");
                assert!(!told.is_empty(), "{shown}");
            }
        }
        SERVER.still_serves(&format!("{:?}", &shape[..shape.len().min(4)]));
    }
}

#[test]
fn cve_2026_24173_generate_refuses_what_is_no_tensor() {
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(101), "]".repeat(101));
    let uneven = r#"{"x":[[1,2],[3]]}"#;
    for body in [
        deep.as_str(),
        uneven,
        "",
        "[]",
        "7",
        r#"{"x":{}}"#,
        r#"{"x":[1,"a"]}"#,
        r#"{"x":1e400}"#,
        r#"{"x":null}"#,
        r#"{"x":[1],"x":[2]}"#,
        r#"{"x":[1],"parameters":7}"#,
        r#"{"x":[1],"id":7}"#,
        r#"{"x":[1],"triton_x":1}"#,
        r#"{"x":[1],"sequence_id":1.5}"#,
    ] {
        for model in ["m", "matrix", "batched", "chain", "versions"] {
            for end in ["generate", "generate_stream"] {
                let path = format!("/v2/models/{model}/{end}");
                let answer = SERVER.http.post(&path, body);
                let is_unknown = model == "versions" && answer.status == 404;
                let is_refused = answer.status == 400 || is_unknown;
                // A matrix of what is only a list, or the last of two equal keys, may be taken.
                let may_be_taken = answer.status == 200 && body.contains("\"x\":[1]");
                assert!(is_refused || may_be_taken, "{path} {body}: {}", answer.text());
            }
        }
        SERVER.still_serves(&body[..body.len().min(40)]);
    }
}

#[test]
fn cve_2025_23331_memory_is_taken_for_what_came_and_not_for_what_was_announced() {
    SERVER.still_serves("nothing");
    let before = resident_mib(SERVER.pid);
    let shape = json!([1u64 << 30]);
    let mut grpc = Grpc::connect(SERVER.grpc);
    for _ in 0..10 {
        // Beyond what JSON may be; then in Triton's words, and with its status.
        for (shape, status, text) in [
            (1u64 << 30, 400, "exceeds the maximum allowed value"),
            (1 << 27, 500, "Unable to parse 'data': Shape does not match true shape"),
        ] {
            let input = json!({"name": "x", "datatype": "FP64", "shape": [shape], "data": [1.0]});
            SERVER.infer("doubles", &json!({"inputs": [input]})).refuses(status, text);
        }
        let words = json!({"name": "x", "datatype": "BYTES", "shape": shape, "data": ["a"]});
        let answer = SERVER.infer("words", &json!({"inputs": [words]}));
        assert!(matches!(answer.status, 400 | 500), "{}", answer.text());
        assert!(answer.error().contains("'x'") || answer.status == 500, "{}", answer.text());
        for (model, dtype) in [("doubles", "FP64"), ("words", "BYTES")] {
            let input = json!({"name": "x", "datatype": dtype, "shape": shape,
                               "parameters": {"binary_data_size": 8}});
            let answer = SERVER.http.infer_binary(model, &json!({"inputs": [input]}), &[&[0; 8]]);
            assert_eq!(answer.status, 400, "{}", answer.text());
            let mut request = over_grpc(model, &[1 << 30], 8);
            request.inputs[0].datatype = dtype.to_owned();
            let status = grpc.infer(request).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        }
    }
    assert!(resident_mib(SERVER.pid) < before + 256, "an answer took what was announced");
    memory_is_back(SERVER.pid, before);
    SERVER.still_serves("large shapes");
}

#[test]
fn cve_2026_24146_a_million_inputs_or_outputs_are_refused_and_so_is_the_same_twice() {
    const MANY: usize = 1_000_000;
    SERVER.still_serves("nothing");
    let before = resident_mib(SERVER.pid);
    let input = r#"{"name":"x","datatype":"FP32","shape":[1],"data":[1]}"#;
    let output = r#"{"name":"y"}"#;
    let of = |inputs: usize, outputs: usize| {
        let inputs = vec![input; inputs].join(",");
        format!(r#"{{"inputs":[{inputs}],"outputs":[{}]}}"#, vec![output; outputs].join(","))
    };
    for (inputs, outputs, text) in [
        (MANY, 1, "more than 4096 inputs, outputs, dimensions or parameters"),
        (1, MANY, "more than 4096 inputs, outputs, dimensions or parameters"),
        (2, 1, "input 'x' already exists in request"),
        (1, 2, "output 'y' already exists in request"),
    ] {
        SERVER.http.infer("m", of(inputs, outputs)).refuses(400, text);
        SERVER.still_serves(text);
    }
    let mut grpc = Grpc::connect(SERVER.grpc);
    let output = InferRequestedOutputTensor { name: "y".to_owned(), ..Default::default() };
    let input = InferInputTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1],
        ..Default::default()
    };
    for many in [2, MANY] {
        let mut request = floats("m", &[("x", &[1.0])]);
        request.outputs = vec![output.clone(); many];
        let status = grpc.infer(request).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        let mut request = floats("m", &[("x", &[1.0])]);
        request.inputs = vec![input.clone(); many];
        request.raw_input_contents = vec![vec![0; 4].into(); many.min(10_000)];
        let status = grpc.infer(request).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        SERVER.still_serves("many over gRPC");
    }
    memory_is_back(SERVER.pid, before);
}

#[test]
fn cve_2025_23321_classes_of_nothing_and_of_no_number_are_refused() {
    let asked = |dtype: &str, shape: Value, data: Value, classes: Value| {
        json!({
            "inputs": [{"name": "x", "datatype": dtype, "shape": shape, "data": data}],
            "outputs": [{"name": "y", "parameters": {"classification": classes}}],
        })
    };
    for classes in [json!(-1), json!(1u64 << 31), json!(1u64 << 32), json!(1u64 << 63)] {
        let answer = SERVER.infer("m", &asked("FP32", json!([2]), json!([1, 2]), classes.clone()));
        let is_all = answer.status == 200 && answer.output("y").as_array().unwrap().len() == 2;
        assert!(is_all || answer.status == 400, "{classes}: {}", answer.text());
        SERVER.still_serves("classes");
    }
    for classes in [json!("a"), json!(1.5), json!([1]), json!(null), json!(true)] {
        let answer = SERVER.infer("m", &asked("FP32", json!([2]), json!([1, 2]), classes.clone()));
        assert_eq!(answer.status, 400, "{classes}: {}", answer.text());
    }
    // More than there are: all of them. None: the output itself.
    let all = SERVER.infer("m", &asked("FP32", json!([2]), json!([1, 2]), json!(1000)));
    assert_eq!(all.output("y"), json!(["2.000000:1", "1.000000:0"]));
    let none = SERVER.infer("m", &asked("FP32", json!([2]), json!([1, 2]), json!(0)));
    assert_eq!(none.numbers("y"), [1.0, 2.0]);
    let empty = SERVER.infer("m", &asked("FP32", json!([0]), json!([]), json!(3)));
    assert!(matches!(empty.status, 200 | 400), "{}", empty.text());
    for data in [json!(["a"]), json!([""])] {
        let answer = SERVER.infer("words", &asked("BYTES", json!([1]), data, json!(1)));
        answer.refuses(400, "class result not available for output due to unsupported type");
    }
    let mut grpc = Grpc::connect(SERVER.grpc);
    for classes in [-1, i64::MIN, 1 << 31, i64::MAX] {
        let mut request = floats("m", &[("x", &[1.0])]);
        let value = troupe_proto::inference::InferParameter {
            parameter_choice: Some(ParameterChoice::Int64Param(classes)),
        };
        request.outputs = vec![InferRequestedOutputTensor {
            name: "y".to_owned(),
            parameters: [("classification".to_owned(), value)].into(),
        }];
        match grpc.infer(request) {
            Ok(answer) => assert_eq!(answer.outputs[0].shape, [1], "{classes}"),
            Err(status) => assert_eq!(status.code(), Code::InvalidArgument, "{status}"),
        }
    }
    SERVER.still_serves("classes");
}
