//! Mistakes of clients: each request of `mistakes.md` gets the answer that stands below it there.
//!
//! `TROUPE_GENERATE=1 cargo test --test main mistakes` writes the answers anew: read what changes.

use std::{env, fs};

use serde_json::Value;
use troupe_proto::inference::{
    InferTensorContents, ModelInferRequest,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

use crate::support::{Repository, Server, ensemble, grpc::Grpc, http::floats, native, python};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/mistakes.md");
/// How the line with the answer begins.
const ANSWER: &str = "-> ";

fn repository() -> Repository {
    let streams = "
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    x = pb_utils.get_input_tensor_by_name(request, 'x')
                    for _ in range(2):
                        y = pb_utils.Tensor('y', x.as_numpy())
                        sender.send(pb_utils.InferenceResponse([y]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";
    let streams = python("x:INT32[1] -> y:INT32[1]", streams)
        .with("model_transaction_policy { decoupled: true }");
    let signature = "a:FP32[4] b:FP32[4] -> sum:FP32[4] difference:FP32[4]";
    Repository::of([
        ("add_sub", native("add_sub", signature)),
        ("vector", native("identity", "a:FP32[4] -> sum:FP32[4]")),
        ("rows", native("identity", "x:FP32[4] -> y:FP32[4]").batch(4)),
        ("text", native("identity", "text_input:BYTES[-1] -> text_output:BYTES[-1]")),
        ("ids", native("identity", "ids:INT64[-1,2] -> y:INT64[-1,2]")),
        ("flags", native("identity", "x:BOOL[2] -> y:BOOL[2]")),
        ("half", native("identity", "x:FP16[2] -> y:FP16[2]")),
        ("free", native("identity", "x:FP32[-1] -> y:FP32[-1]")),
        (
            "two_steps",
            ensemble("x:FP32[-1] -> z:FP32[4]", &["free: x=x -> y=h", "add_sub: a=h b=h -> sum=z"]),
        ),
        ("streams", streams),
        ("streams_too", ensemble("x:INT32[1] -> y:INT32[1]", &["streams: x=x -> y=y"])),
        ("broken", native("ad_sub", signature)),
    ])
}

#[test]
fn every_mistake_gets_the_answer_of_the_document() {
    let server = Server::lenient(repository());
    let mut grpc = Grpc::connect(server.grpc);
    let models = server.repository.models().display().to_string();
    let metrics = server.metrics.0.port().to_string();
    let written = fs::read_to_string(DOCUMENT).unwrap();
    let (mut found, mut asked) = (String::new(), 0);
    for line in written.lines().filter(|it| !it.starts_with(ANSWER)) {
        found += line;
        found.push('\n');
        if let Some(answer) = answer(&server, &mut grpc, line) {
            let answer = answer.replace(&models, "MODELS").replace(&metrics, "8002");
            found += &format!("{ANSWER}{answer}\n");
            asked += 1;
        }
    }
    assert!(100 < asked, "{asked} requests in {DOCUMENT}");
    if env::var_os("TROUPE_GENERATE").is_some() {
        return fs::write(DOCUMENT, &found).unwrap();
    }
    for (found, written) in found.lines().zip(written.lines()) {
        assert_eq!(found, written);
    }
    assert_eq!(found.lines().count(), written.lines().count(), "answers at the end");
    server.infer("vector", &floats(&[("a", &[1.0; 4])])).ok();
}

/// What the server says to a line that is a request.
fn answer(server: &Server, grpc: &mut Grpc, line: &str) -> Option<String> {
    let (method, rest) = line.split_once(' ')?;
    match method {
        "GET" | "POST" | "PUT" => {
            let (path, body) = rest.split_once(' ').unwrap_or((rest, ""));
            // One header may stand in brackets before the body.
            let header = body.strip_prefix('[').and_then(|it| it.split_once("] "));
            let (header, body) = match header.filter(|(it, _)| it.contains(": ")) {
                Some((header, body)) => (header.split_once(": "), body),
                None => (None, body),
            };
            let headers: Vec<(&str, &str)> = header.into_iter().collect();
            let answer = server.http.send(method, path, &headers, body.as_bytes());
            let location = answer.header("location").map(|it| format!(" [location: {it}]"));
            let text = match answer.json().get("error").and_then(Value::as_str) {
                Some(text) => text.replace('\n', "\\n"),
                None => answer.text(),
            };
            Some(format!("{}{} {text}", answer.status, location.unwrap_or_default()))
        }
        "ModelInfer" => {
            let request: Value = serde_json::from_str(rest).unwrap();
            Some(match grpc.infer(message(&request)) {
                Ok(_) => "OK".to_owned(),
                Err(status) => format!("{:?} {}", status.code(), status.message()),
            })
        }
        _ => None,
    }
}

/// The JSON of HTTP as a message, its numbers as typed contents of FP32.
fn message(request: &Value) -> ModelInferRequest {
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    let list = |it: &Value| it.as_array().cloned().unwrap_or_default();
    let input = |it: &Value| InferInputTensor {
        name: text(&it["name"]),
        datatype: text(&it["datatype"]),
        shape: list(&it["shape"]).iter().filter_map(Value::as_i64).collect(),
        contents: it.get("data").map(|data| InferTensorContents {
            fp32_contents: list(data)
                .iter()
                .filter_map(Value::as_f64)
                .map(|it| it as f32)
                .collect(),
            ..InferTensorContents::default()
        }),
        ..InferInputTensor::default()
    };
    let output = |it: &Value| InferRequestedOutputTensor {
        name: text(&it["name"]),
        ..InferRequestedOutputTensor::default()
    };
    ModelInferRequest {
        model_name: text(&request["model"]),
        model_version: text(&request["version"]),
        inputs: list(&request["inputs"]).iter().map(input).collect(),
        outputs: list(&request["outputs"]).iter().map(output).collect(),
        ..ModelInferRequest::default()
    }
}
