//! The generate extension: flat JSON, one answer or server-sent events.

use std::{
    io::{Read, Write},
    sync::LazyLock,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    decoupled::models::decoupled,
    support::{
        Answer, Repository, Server, at_once, ensemble,
        gate::Gate,
        http,
        models::{execute, native},
        until,
    },
};

/// A language model without a language: repeats its prompt.
pub(crate) const PARROT: &str = "
    for it in requests:
        value = lambda name, other: (
            other if pb_utils.get_input_tensor_by_name(it, name) is None
            else pb_utils.get_input_tensor_by_name(it, name).as_numpy().ravel()[0]
        )
        sender = it.get_response_sender()
        text = pb_utils.Tensor('TEXT', np.array([value('PROMPT', b'')], np.object_))
        said = json.loads(it.parameters() or '{}')
        repetition = value('REPETITION', 1)
        for index in range(repetition):
            is_last = index + 1 == repetition and not value('STREAM', False)
            sender.send(pb_utils.InferenceResponse([text], parameters=said), int(is_last))
            if is_last:
                break
        else:
            if value('FAIL_LAST', False):
                error = pb_utils.TritonError('out of words', pb_utils.TritonError.UNAVAILABLE)
                sender.send(pb_utils.InferenceResponse(error=error))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

pub(crate) const PROMPT: &str = "PROMPT:BYTES[1] STREAM:BOOL[1] REPETITION?:INT32[1] FAIL_LAST?:BOOL[1] -> \
                      TEXT:BYTES[1]";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let repository = Repository::new()
        .with("parrot", decoupled(execute(PROMPT, PARROT)))
        .with("rows", native("identity", "x:FP32[2] -> y:FP32[2]").batch(8))
        .with("add_sub", native("add_sub", "a:FP32[-1] b:FP32[-1] -> sum:FP32[-1] diff:FP32[-1]"))
        .with(
            "chain",
            ensemble(
                "A:FP32[-1] B:FP32[-1] -> S:FP32[-1] D:FP32[-1]",
                &["add_sub: a=A b=B -> sum=s diff=d", "add_sub: a=s b=d -> sum=S diff=D"],
            ),
        );
    Server::start(repository)
});

fn ask(model: &str, request: Value) -> Answer {
    SERVER.http.post(&format!("/v2/models/{model}/generate"), request)
}

fn stream(model: &str, request: Value) -> Answer {
    SERVER.http.post(&format!("/v2/models/{model}/generate_stream"), request)
}

const NOT_ONE: &str = "generate expects model to produce exactly 1 response, use generate stream \
                       for model that generates various number of responses";

#[test]
fn a_prompt_gives_a_text() {
    for is_streaming in [true, false] {
        let request = json!({"PROMPT": "hello world", "STREAM": is_streaming});
        let expected = json!({"model_name": "parrot", "model_version": "1", "TEXT": "hello world"});
        let answer = ask("parrot", request.clone());
        assert_eq!(answer.ok().json(), expected);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let versioned = SERVER.http.post("/v2/models/parrot/versions/1/generate", &request);
        assert_eq!(versioned.ok().json(), expected);
        let path = "/v2/models/parrot/versions/1/generate_stream";
        assert_eq!(SERVER.http.post(path, &request).ok().events(), [expected]);
    }
}

#[test]
fn parameters_reach_the_model_and_come_back_beside_its_outputs() {
    let request = json!({
        "id": "seven", "PROMPT": ["é"], "STREAM": true, "seed": -1,
        "parameters": {"REPETITION": 2, "top_k": 3, "stop": "!", "greedy": false},
    });
    let events = stream("parrot", request).ok().events();
    assert_eq!(events.len(), 2);
    for event in events {
        assert_eq!((&event["id"], &event["TEXT"]), (&json!("seven"), &json!("é")));
        let said = ["seed", "top_k", "stop", "greedy"].map(|it| event[it].clone());
        assert_eq!(said, [json!(-1), json!(3), json!("!"), json!(false)]);
    }
}

#[test]
fn generate_wants_exactly_one_response() {
    for repetition in [0, 2, 100] {
        let request = json!({"PROMPT": "p", "STREAM": true, "REPETITION": repetition});
        ask("parrot", request.clone()).refuses(500, NOT_ONE);
        let events = stream("parrot", request).ok().events();
        assert_eq!(events.len(), repetition);
        assert!(events.iter().all(|it| it["TEXT"] == "p"));
    }
    let failing = json!({"PROMPT": "p", "STREAM": true, "REPETITION": 0, "FAIL_LAST": true});
    ask("parrot", failing).refuses(503, "out of words");
}

#[test]
fn the_first_response_decides_the_status() {
    let failing = |repetition: u32| json!({"PROMPT": "p", "STREAM": true, "REPETITION": repetition, "FAIL_LAST": true});
    let answer = stream("parrot", failing(0));
    assert_eq!(answer.status, 503);
    assert_eq!(answer.events(), [json!({"error": "out of words"})]);
    let answer = stream("parrot", failing(1));
    let events = answer.ok().events();
    assert_eq!(events[0]["TEXT"], "p");
    assert_eq!(events[1..], [json!({"error": "out of words"})]);
}

#[test]
fn wrong_requests_are_refused_in_json() {
    for (request, text) in [
        (json!({}), "expected number of inputs between 2 and 4 but got 0 inputs"),
        (json!({"PROMPT": "p", "other": 1}), "missing required input(s) ['STREAM']"),
        (json!({"PROMPT": 1, "STREAM": true}), "attempt to access JSON non-string as string"),
        (json!({"PROMPT": "p", "STREAM": "no"}), "attempt to access JSON non-boolean as boolean"),
        (json!({"PROMPT": {"a": "b"}, "STREAM": true}), "non-string as string"),
        (json!({"PROMPT": ["a", "b"], "STREAM": true}), "can not convert input 'PROMPT' to tensor"),
        (json!({"PROMPT": "p", "STREAM": true, "x": {}}), "parameter 'x' has invalid type"),
    ] {
        for answer in [ask("parrot", request.clone()), stream("parrot", request.clone())] {
            answer.refuses(400, text);
            assert_eq!(answer.header("content-type"), Some("application/json"));
        }
    }
    stream("nobody", json!({})).refuses(404, "Request for unknown model: 'nobody' is not found");
    let gzip = SERVER.http.send(
        "POST",
        "/v2/models/parrot/generate",
        &[("Content-Encoding", "gzip")],
        b"{}",
    );
    gzip.refuses(400, "Unsupported content-encoding, only 'identity' is supported.");
    SERVER.http.get("/v2/models/parrot/generate").refuses(405, "Method Not Allowed");
}

#[test]
fn any_model_can_be_asked() {
    let rows = ask("rows", json!({"x": [1, 2, 3, 4]}));
    assert_eq!(rows.ok().json()["y"], json!([1.0, 2.0, 3.0, 4.0]));
    let chain = json!({"A": 5, "B": [3]});
    let said = ask("chain", chain.clone()).ok().json();
    assert_eq!(
        ["model_name", "S", "D"].map(|it| said[it].clone()),
        [json!("chain"), json!(10.0), json!(6.0)]
    );
    assert_eq!(stream("chain", chain).ok().events(), [said]);
    ask("chain", json!({"A": 5, "B": [3, 4]})).refuses(400, "in ensemble 'chain'");
}

#[test]
fn many_clients_get_all_their_events() {
    let counts = at_once(8, |client| {
        (0..10usize)
            .map(|turn| {
                let prompt = format!("{client} {turn}");
                let request = json!({"PROMPT": prompt, "STREAM": true, "REPETITION": turn});
                let events = stream("parrot", request).ok().events();
                assert!(events.iter().all(|it| it["TEXT"] == prompt));
                events.len()
            })
            .sum::<usize>()
    });
    assert_eq!(counts, [45; 8]);
    SERVER.is_well();
}

#[test]
fn a_connection_goes_on_after_a_stream() {
    let mut connection = SERVER.http.connect();
    let body = r#"{"PROMPT":"p","STREAM":true,"REPETITION":3}"#;
    let head = "POST /v2/models/parrot/generate_stream HTTP/1.1\r\nHost: t\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    for _ in 0..3 {
        connection.write_all(request.as_bytes()).unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"0\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        assert_eq!(text.matches("data: ").count(), 3, "{text}");
    }
}

/// Sends a response on either side of a gate.
const GATED: &str = "
    for it in requests:
        sender = it.get_response_sender()
        y = lambda value: pb_utils.InferenceResponse(
            [pb_utils.Tensor('y', np.array([value], np.float32))])
        sender.send(y(1))
        pass_gate()
        sender.send(y(2))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

#[test]
fn a_stream_without_end_is_given_up_at_the_exit_timeout() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let model = decoupled(gate.guard("x:FP32[1] -> y:FP32[1]", GATED));
    let server = Server::with(repository.with("gated", model), &["--exit-timeout-secs=1"]);
    let _streaming = server.http.start_at("/v2/models/gated/generate_stream", &json!({"x": 1}));
    gate.is_reached();
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(1), "{}", server.log());
}

#[test]
fn an_exiting_server_lets_streams_come_to_their_end() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let model = decoupled(gate.guard("x:FP32[1] -> y:FP32[1]", GATED));
    let server = Server::start(repository.with("gated", model));
    let path = "/v2/models/gated/generate_stream";
    let streaming = server.http.start_at(path, &json!({"x": 1}));
    gate.is_reached();
    let mut late = server.http.connect();
    write!(late, "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n").unwrap();
    server.signal(Signal::TERM);
    until("new connections to be refused", || {
        // Health is still answered until the server has begun to drain.
        let mut health = server.http.connect();
        health
            .write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .unwrap();
        http::finish(health).status == 503
    });
    late.write_all(b"Content-Length: 7\r\n\r\n{\"x\":1}").unwrap();
    http::finish(late).refuses(503, "Server is stopping");
    gate.let_through(1);
    let answer = http::finish(streaming);
    let values: Vec<Value> = answer.ok().events().iter().map(|it| it["y"].clone()).collect();
    assert_eq!(values, [1.0, 2.0]);
    assert_eq!(server.end().code(), Some(0), "{}", server.log());
}
