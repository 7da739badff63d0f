//! ONNX models over real sockets: from a lone file to batches, ensembles, reloads and failures.

use std::{fs, path::Path};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    Answer, Model, Repository, Server, at_once, ensemble,
    http::{floats, input},
    models::TYPES,
    native,
};

/// One row of an input as long as the fixtures want it.
fn row(name: &str, dtype: &str, data: Vec<Value>) -> Value {
    input(name, dtype, &[1, data.len() as i64], data)
}

fn infer(server: &Server, model: &str, inputs: &[Value]) -> Answer {
    server.infer(model, &json!({ "inputs": inputs }))
}

/// What most fixtures have in a row.
fn sixteen<T: Into<Value>>(make: impl Fn(i64) -> T) -> Vec<Value> {
    (0..16).map(|it| make(it).into()).collect()
}

#[test]
fn models_of_numbers_answer() {
    let names = ["add_sub_fp32", "identity_fp32", "mul_fp32", "simple", "simple_int8"];
    let server = Server::start(names.iter().fold(Repository::new(), |it, name| it.with_onnx(name)));
    for (model, dtype) in [("simple", "INT32"), ("simple_int8", "INT8"), ("add_sub_fp32", "FP32")] {
        let inputs = [row("INPUT0", dtype, sixteen(|it| it)), row("INPUT1", dtype, sixteen(|_| 1))];
        let answer = infer(&server, model, &inputs);
        let sums: Vec<f64> = (1..17).map(f64::from).collect();
        let differences: Vec<f64> = (-1..15).map(f64::from).collect();
        assert_eq!(answer.numbers("OUTPUT0"), sums, "{model}");
        assert_eq!(answer.numbers("OUTPUT1"), differences, "{model}");
        assert_eq!(answer.shape("OUTPUT0"), json!([1, 16]));
    }
    let inputs = [row("INPUT0", "FP32", sixteen(|it| it)), row("INPUT1", "FP32", sixteen(|_| 2))];
    let products: Vec<f64> = (0..16).map(|it| f64::from(2 * it)).collect();
    assert_eq!(infer(&server, "mul_fp32", &inputs).numbers("OUTPUT0"), products);
    let data = vec![json!(0.5); 1000];
    let answer = infer(&server, "identity_fp32", &[row("INPUT0", "FP32", data.clone())]);
    assert_eq!(answer.output("OUTPUT0"), json!(data));
    server.is_well();
}

#[test]
fn models_of_strings_answer() {
    let server =
        Server::start(Repository::new().with_onnx("simple_identity").with_onnx("simple_string"));
    let numbers = row("INPUT0", "BYTES", sixteen(|it| it.to_string()));
    let inputs = [numbers, row("INPUT1", "BYTES", sixteen(|_| "1"))];
    let answer = infer(&server, "simple_string", &inputs);
    assert_eq!(answer.output("OUTPUT0"), json!(sixteen(|it| (it + 1).to_string())));
    assert_eq!(answer.output("OUTPUT1"), json!(sixteen(|it| (it - 1).to_string())));
    let words = sixteen(|it| format!("é\0{it}"));
    let answer = infer(&server, "simple_identity", &[row("INPUT0", "BYTES", words.clone())]);
    assert_eq!(answer.output("OUTPUT0"), json!(words));
    // No number: the model fails, and says so.
    let inputs = ["INPUT0", "INPUT1"].map(|it| row(it, "BYTES", sixteen(|_| "x")));
    infer(&server, "simple_string", &inputs).refuses(500, "onnx runtime error ");
    server.is_well();
}

#[test]
fn a_lone_file_is_a_model() {
    let repository = Repository::new()
        .with_onnx("every_type")
        .with_onnx("external")
        .with_onnx("scalar")
        .with_onnx("symbolic");
    let server =
        Server::with(repository, &["--backend-config=onnxruntime,default-max-batch-size=3"]);
    let config = server.http.get("/v2/models/external/config").ok().json();
    assert_eq!(config["max_batch_size"], 3);
    assert_eq!(config["platform"], "onnxruntime_onnx");
    assert_eq!(config["dynamic_batching"]["preferred_batch_size"], json!([3]));
    assert_eq!(config["input"][0]["dims"], json!([64]));
    let metadata = server.http.get("/v2/models/symbolic").ok().json();
    assert_eq!(
        metadata["inputs"],
        json!([{"name": "INPUT0", "datatype": "FP32", "shape": [2, -1]}])
    );
    let answer = infer(&server, "external", &[row("INPUT0", "FP32", vec![json!(1); 64])]);
    assert_eq!(answer.numbers("OUTPUT0"), (1..65).map(f64::from).collect::<Vec<_>>());
    let answer = server.infer("scalar", &floats(&[("INPUT0", &[1.5])]));
    assert_eq!((answer.numbers("OUTPUT0"), answer.shape("OUTPUT0")), (vec![2.5], json!([1])));
    server.is_well();
}

#[test]
fn bytes_of_every_type_come_back_as_they_went() {
    let server = Server::start(Repository::new().with_onnx("every_type"));
    let name = |dtype: &str| match dtype {
        "BYTES" => "string".to_owned(),
        other => other.to_lowercase(),
    };
    let inputs = TYPES.iter().map(|(dtype, bytes)| {
        json!({"name": format!("in_{}", name(dtype)), "datatype": dtype, "shape": [1, 2],
               "parameters": {"binary_data_size": bytes.len()}})
    });
    let request = json!({
        "inputs": inputs.collect::<Vec<_>>(), "parameters": {"binary_data_output": true}
    });
    let tensors: Vec<&[u8]> = TYPES.iter().map(|(_, bytes)| *bytes).collect();
    let answer = server.http.infer_binary("every_type", &request, &tensors);
    let length = answer.ok().header("inference-header-content-length").unwrap().parse().unwrap();
    let (head, mut rest) = answer.body.split_at(length);
    let head: Value = serde_json::from_slice(head).unwrap();
    for output in head["outputs"].as_array().unwrap() {
        let size = output["parameters"]["binary_data_size"].as_u64().unwrap() as usize;
        let (bytes, more) = rest.split_at(size);
        rest = more;
        let dtype = output["datatype"].as_str().unwrap();
        assert_eq!(output["name"], format!("out_{}", name(dtype)));
        let sent = TYPES.iter().find(|it| it.0 == dtype).unwrap().1;
        assert_eq!(bytes, sent, "{dtype}");
    }
    server.is_well();
}

#[test]
fn callers_share_an_execution_and_each_gets_its_row() {
    let config =
        "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }
                  instance_group { count: 1 }";
    let server = Server::start(Repository::new().with_onnx_as("m", "identity_fp32", config));
    let answers = at_once(4, |caller| {
        let data = vec![json!(caller), json!(caller * 10)];
        infer(&server, "m", &[row("INPUT0", "FP32", data)]).numbers("OUTPUT0")
    });
    for (caller, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, [caller as f64, caller as f64 * 10.0]);
    }
    assert_eq!((server.successes("m"), server.executions("m")), (4, 1));
}

#[test]
fn a_model_that_miscounts_its_rows_fails_alone_and_in_a_batch() {
    let batched = "max_batch_size: 8 dynamic_batching { preferred_batch_size: 2
                   max_queue_delay_microseconds: 60000000 } instance_group { count: 1 }";
    let repository = Repository::new()
        .with_onnx_as("alone", "doubles_rows", "max_batch_size: 1")
        .with_onnx_as("batched", "doubles_rows", batched);
    let server = Server::start(repository);
    let ask = |model| infer(&server, model, &[row("INPUT0", "FP32", vec![json!(1); 4])]);
    ask("alone").refuses(500, "output 'OUTPUT0' of model 'alone' has shape [2,4], expected [1,4]");
    for answer in at_once(2, |_| ask("batched")) {
        let text = "output 'OUTPUT0' of model 'batched' has shape [4,4], expected [2,4]";
        answer.refuses(500, text);
    }
    server.is_well();
}

#[test]
fn steps_of_ensembles_may_be_onnx_models() {
    let tensors = "A:FP32[16] B:FP32[16] -> Z:FP32[16]";
    let steps = [
        "add_sub_fp32: INPUT0=A INPUT1=B -> OUTPUT0=sum OUTPUT1=difference",
        "twice: x=sum -> y=copy",
        "mul_fp32: INPUT0=copy INPUT1=difference -> OUTPUT0=Z",
    ];
    let repository = Repository::new()
        .with_onnx("add_sub_fp32")
        .with_onnx("mul_fp32")
        .with("twice", native("identity", "x:FP32[16] -> y:FP32[16]").batch(8))
        .with("e", ensemble(tensors, &steps).batch(8));
    let server = Server::start(repository);
    let (a, b) = (vec![json!(5); 16], vec![json!(3); 16]);
    let answer = infer(&server, "e", &[row("A", "FP32", a), row("B", "FP32", b)]);
    assert_eq!(answer.numbers("Z"), [16.0; 16]);
    server.is_well();
}

#[test]
fn what_does_not_load_says_why_and_hurts_nobody() {
    let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/onnx/simple/1/model.onnx");
    let whole = fs::read(whole).unwrap();
    let wrong = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [4] }
input { name: 'INPUT1' data_type: TYPE_INT32 dims: [16] }
output { name: 'NONE' data_type: TYPE_INT32 dims: [16] }
max_batch_size: 8";
    let strange = "parameters { key: 'intra_op_thread_count' value { string_value: 'x' } }";
    let repository = Repository::new()
        .with_onnx("simple")
        .with_onnx("future_opset")
        .with_onnx_as("wrong", "simple", wrong)
        .with_onnx_as("strange", "simple", strange)
        .with("missing", Model::of("backend: \"onnxruntime\""));
    repository.write_file("garbage/1/model.onnx", "no model at all");
    repository.write_file("truncated/1/model.onnx", &whole[..whole.len() / 2]);
    let flags = ["--exit-on-error=false", "--model-control-mode=explicit", "--load-model=*"];
    let server = Server::with(repository, &flags);
    for (model, texts) in [
        (
            "garbage",
            &[
                "unable to load model 'garbage' version 1 from '",
                "garbage/1/model.onnx': onnx runtime error ",
            ][..],
        ),
        (
            "truncated",
            &["unable to load model 'truncated' version 1 from '", "onnx runtime error "],
        ),
        ("future_opset", &["onnx runtime error ", "999"]),
        ("missing", &["unable to find '", "missing/1/model.onnx' for model instance 'missing'"]),
        (
            "wrong",
            &[
                "configuration expects datatype TYPE_FP32 for input 'INPUT0', model provides TYPE_INT32",
                "making complete shape [-1,4]",
                "wrong/config.pbtxt:1:45)",
                "unexpected inference output 'NONE', allowed outputs are: OUTPUT0, OUTPUT1",
                "wrong/config.pbtxt:3:10)",
            ],
        ),
        ("strange", &["expected a number of threads from 0 to 1024", "strange/config.pbtxt:1:1)"]),
    ] {
        let state = server.state(model);
        for text in texts {
            assert!(state.contains(text), "no `{text}` in {state}");
        }
    }
    assert_eq!(server.state("simple"), "READY");
    // Repaired, it loads.
    server.repository.write_file("truncated/1/model.onnx", &whole);
    server.load("truncated").ok();
    let ones = || vec![json!(1); 16];
    let inputs = [row("INPUT0", "INT32", ones()), row("INPUT1", "INT32", ones())];
    assert_eq!(infer(&server, "truncated", &inputs).numbers("OUTPUT0"), [2.0; 16]);
    assert_eq!(server.http.get("/v2/models/truncated/ready").status, 200);
}

#[test]
fn models_come_and_go_under_load() {
    let server = Server::explicit(Repository::new().with_onnx("add_sub_fp32"));
    let ones = || vec![json!(1); 16];
    for _ in 0..5 {
        server.load("add_sub_fp32").ok();
        let answers = at_once(4, |caller| {
            if caller == 0 {
                return server.unload("add_sub_fp32");
            }
            let inputs = [row("INPUT0", "FP32", ones()), row("INPUT1", "FP32", ones())];
            infer(&server, "add_sub_fp32", &inputs)
        });
        for answer in &answers[1..] {
            match answer.status {
                200 => assert_eq!(answer.numbers("OUTPUT0"), [2.0; 16]),
                // Gone already.
                status => assert!((400..504).contains(&status), "{}", answer.text()),
            }
        }
    }
    server.is_well();
}

#[test]
fn failed_runs_are_answers_and_the_end_is_clean() {
    let server = Server::start(Repository::new().with_onnx("gather"));
    let ask = |index: i64| infer(&server, "gather", &[input("INPUT0", "INT64", &[1, 1], [index])]);
    ask(7).refuses(500, "onnx runtime error 2: ");
    assert_eq!(ask(1).numbers("OUTPUT0"), [20.0]);
    // Told to the caller, and to whoever operates the server: once, not by the library too.
    let line = server.logged("execution failed: onnx runtime error 2: ");
    assert!(line.starts_with('E') && line.contains("model=gather"), "{line}");
    assert_eq!(server.log().matches("idx=7").count(), 1, "{}", server.log());
    server.is_well();
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0), "{}", server.log());
}
