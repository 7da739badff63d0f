//! The memory of requests: it is bounded, shared out fairly, refused at once, and given back.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};
use tonic::{Code, codec::CompressionEncoding};

use crate::support::{
    Answer, Model, Repository, Server, at_once, ensemble,
    gate::Gate,
    grpc::{Grpc, bytes, floats},
    http::finish,
    models::{delay, execute, same},
    native, process, until,
};

const MIB: usize = 1 << 20;
/// `--max-inflight-bytes` of most tests.
const BUDGET: usize = 64 * MIB;

fn serve<'a>(models: impl IntoIterator<Item = (&'a str, Model)>) -> Server {
    Server::with(Repository::of(models), &[&format!("--max-inflight-bytes={BUDGET}")])
}

fn identity() -> Model {
    native("identity", "x:UINT8[-1] -> y:UINT8[-1]")
}

/// Answers with as many MiB as it is told.
fn maker() -> Model {
    execute(
        "x:INT32[1] -> y:UINT8[-1]",
        "
        size = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()[0]
        out = pb_utils.Tensor('y', np.zeros(size << 20, np.uint8))
        return [pb_utils.InferenceResponse([out]) for _ in requests]",
    )
}

fn asked(size: usize) -> Value {
    json!({
        "inputs": [{"name": "x", "datatype": "UINT8", "shape": [size],
                    "parameters": {"binary_data_size": size}}],
        "parameters": {"binary_data_output": true},
    })
}

fn send(server: &Server, model: &str, size: usize) -> Answer {
    server.http.infer_binary(model, &asked(size), &[&vec![7; size]])
}

/// The same, sent and not waited for.
fn start(server: &Server, model: &str, size: usize) -> TcpStream {
    server.http.start_binary(model, &asked(size), &[&vec![7; size]])
}

/// The head of a request with a binary tensor, and nothing of its body.
fn announce(server: &Server, model: &str, size: usize) -> TcpStream {
    let stream = server.http.connect();
    let head = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\
         Inference-Header-Content-Length: 0\r\n\r\n"
    );
    (&stream).write_all(head.as_bytes()).unwrap();
    stream
}

fn make(mib: usize) -> Value {
    json!({
        "inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [mib]}],
        "parameters": {"binary_data_output": true},
    })
}

fn in_flight(server: &Server, kind: &str) -> usize {
    server.metric("troupe_inflight_bytes", &[kind]).unwrap() as usize
}

fn refusals(server: &Server, reason: &str) -> f64 {
    server.metric("troupe_requests_refused_total", &[reason]).unwrap()
}

fn resident(server: &Server) -> usize {
    process::resident_mib(server.pid) as usize * MIB
}

/// Nobody holds anything any more.
fn is_all_given_back(server: &Server) {
    until("all bytes to be given back", || {
        ["received", "tensors", "responses", "other"].iter().all(|it| in_flight(server, it) == 0)
    });
    server.is_well();
}

#[test]
fn an_overload_is_answered_or_refused_and_memory_stays_bounded() {
    const SIZE: usize = 2 * MIB;
    let server = serve([("slow", delay(20, "x:UINT8[-1] -> y:UINT8[-1]"))]);
    assert_eq!(send(&server, "slow", SIZE).status, 200);
    let before = resident(&server);
    let answers = at_once(200, |_| {
        let answer = send(&server, "slow", SIZE);
        (answer.status, answer.body.len(), answer.header("retry-after").map(str::to_owned))
    });
    let peak = resident(&server);
    let answered = answers.iter().filter(|it| it.0 == 200).count();
    assert!(0 < answered, "nothing was answered");
    for (status, length, retry) in &answers {
        match status {
            200 => assert!(SIZE < *length),
            503 => assert_eq!(retry.as_deref(), Some("1")),
            // On a machine without time for its client: the head did not come within 5 s.
            408 => (),
            other => panic!("answered with {other}"),
        }
    }
    // 400 MB were sent; what the allocator has not given back yet is in it.
    assert!(peak < before + 3 * BUDGET, "{before} bytes became {peak}");
    is_all_given_back(&server);
    assert_eq!(send(&server, "slow", SIZE).status, 200);
}

#[test]
fn b5_a_slow_model_has_at_most_its_share_and_others_go_on() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let repository = repository.with("slow", gate.model("UINT8[-1]")).with("fast", identity());
    let server = Server::with(repository, &[&format!("--max-inflight-bytes={BUDGET}")]);
    let waiting: Vec<TcpStream> = (0..6).map(|_| start(&server, "slow", 4 * MIB)).collect();
    gate.is_reached();
    until("six requests of 4 MiB to be there", || 24 * MIB <= in_flight(&server, "received"));
    let refused = send(&server, "slow", 4 * MIB);
    assert_eq!(refused.status, 503);
    let error = refused.error();
    assert!(error.contains("at model 'slow' hold 25165824 of 25165824 bytes"), "{error}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refusals(&server, "model_bytes"), 1.0);
    // Nothing of its body has to come, and small requests are not refused.
    let head = announce(&server, "slow", 4 * MIB);
    assert_eq!(finish(head).status, 503);
    let small = start(&server, "slow", 8);
    assert_eq!(send(&server, "fast", 4 * MIB).status, 200);
    gate.let_through(7);
    for stream in waiting.into_iter().chain([small]) {
        assert_eq!(finish(stream).status, 200);
    }
    is_all_given_back(&server);
}

#[test]
fn a2_answers_nobody_reads_count_until_they_are_written() {
    let server = serve([("make", maker()), ("fast", identity())]);
    let unread: Vec<TcpStream> = (0..12).map(|_| server.http.start("make", &make(8))).collect();
    until("answers to take the memory for requests", || 48 * MIB <= in_flight(&server, "tensors"));
    until("all of them to be made", || {
        let stats = &server.stats("make")["inference_stats"];
        stats["success"]["count"].as_u64().unwrap() + stats["fail"]["count"].as_u64().unwrap() == 12
    });
    // The kernel has taken a part of what is written.
    assert!(in_flight(&server, "tensors") <= BUDGET);
    let refused = send(&server, "fast", MIB);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert!(refused.error().contains("requests in flight hold"), "{}", refused.error());
    drop(unread);
    is_all_given_back(&server);
    assert_eq!(send(&server, "fast", MIB).status, 200);
}

#[test]
fn a3_bodies_that_are_only_announced_take_nothing_from_others() {
    let server = Server::with(
        Repository::of([("m", same("x:UINT8[-1] -> y:UINT8[-1]"))]),
        &[
            &format!("--max-inflight-bytes={BUDGET}"),
            "--http-max-input-size=67108864",
            "--backend-config=python,shm-max-byte-size=67108864",
        ],
    );
    let announced: Vec<TcpStream> = (0..40)
        .map(|_| {
            let stream = server.http.connect();
            let head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n\
                        Content-Length: 20000000\r\nInference-Header-Content-Length: 100\r\n\r\n{";
            (&stream).write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    until("all of them to have begun", || 40 * 4096 <= in_flight(&server, "other"));
    assert_eq!(in_flight(&server, "received"), 0);
    assert_eq!(send(&server, "m", MIB).status, 200);
    drop(announced);
    is_all_given_back(&server);
}

#[test]
fn a_step_that_makes_too_much_fails_its_ensemble_by_name() {
    let chain = ensemble("x:INT32[1] -> z:UINT8[-1]", &["make: x=x -> y=y", "copy: x=y -> y=z"]);
    let server = serve([("make", maker()), ("copy", identity()), ("chain", chain)]);
    let refused = server.infer("chain", &make(100));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let error = refused.error();
    assert!(error.starts_with("in ensemble 'chain', step 0 (model 'make' version 1"), "{error}");
    assert!(error.contains("no memory for the answer: requests of this connection"), "{error}");
    assert_eq!(refused.json()["troupe"]["step"], 0);
    is_all_given_back(&server);
    assert_eq!(server.infer("chain", &make(4)).status, 200);
    is_all_given_back(&server);
}

#[test]
fn what_a_called_model_answers_is_charged_to_the_caller() {
    let caller = execute(
        "x:INT32[1] -> y:UINT8[-1]",
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x')
        call = pb_utils.InferenceRequest(
            model_name='make', requested_output_names=['y'], inputs=[x])
        answer = call.exec()
        if answer.has_error():
            return [pb_utils.InferenceResponse(error=answer.error())]
        y = pb_utils.get_output_tensor_by_name(answer, 'y')
        return [pb_utils.InferenceResponse([y])]",
    );
    let server = serve([("make", maker()), ("caller", caller)]);
    let refused = server.infer("caller", &make(100));
    assert!(refused.error().contains("no memory for the answer"), "{}", refused.error());
    is_all_given_back(&server);
    assert_eq!(server.infer("caller", &make(4)).status, 200);
    is_all_given_back(&server);
}

#[test]
fn what_cannot_fit_is_refused_before_it_comes() {
    let limit = format!("--http-max-input-size={}", 40 * MIB);
    let flags = [&*format!("--max-inflight-bytes={BUDGET}"), &limit];
    let server = Server::with(Repository::of([("m", identity())]), &flags);
    let refused = finish(announce(&server, "m", 30 * MIB));
    // Another time it would not fit either.
    assert_eq!((refused.status, refused.header("retry-after")), (503, None));
    let error = refused.error();
    assert!(error.contains("at model 'm' hold 0 of 25165824 bytes"), "{error}");
    assert!(error.ends_with("needs 31457280 more: it can never have them"), "{error}");
    assert_eq!(refusals(&server, "model_bytes"), 1.0);
    assert_eq!(send(&server, "m", MIB).status, 200);
    is_all_given_back(&server);
}

#[test]
fn the_limit_on_the_size_comes_before_the_memory_over_both_protocols() {
    let server = serve([("m", identity())]);
    let mut grpc = Grpc::connect(server.grpc);
    for (count, mib) in [17, 30, 70].into_iter().enumerate() {
        let refused = finish(announce(&server, "m", mib * MIB));
        assert_eq!((refused.status, refused.header("retry-after")), (400, None), "{mib} MiB");
        let error = refused.error();
        assert!(error.contains("Use --http-max-input-size to increase"), "{error}");
        let error = grpc.infer(bytes("m", mib * MIB)).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{mib} MiB");
        assert!(!error.message().contains("no memory"), "{error}");
        assert_eq!(refusals(&server, "size"), 2.0 * (count + 1) as f64);
    }
    assert_eq!(refusals(&server, "model_bytes"), 0.0);
}

#[test]
fn inputs_that_are_joined_to_a_batch_are_counted_twice() {
    let batching =
        "dynamic_batching { max_queue_delay_microseconds: 2000000 preferred_batch_size: 4 }";
    let model = delay(500, "x:UINT8[-1] -> y:UINT8[-1]").batch(4).with(batching);
    let server = serve([("m", model)]);
    let mut request = asked(2 * MIB);
    request["inputs"][0]["shape"] = json!([1, 2 * MIB]);
    let sent = [(); 4].map(|()| server.http.start_binary("m", &request, &[&vec![7; 2 * MIB]]));
    until("the copy to be counted", || 8 * MIB <= in_flight(&server, "tensors"));
    assert!(8 * MIB <= in_flight(&server, "received"));
    for stream in sent {
        assert_eq!(finish(stream).status, 200);
    }
    is_all_given_back(&server);
    assert_eq!(server.executions("m"), 1);
}

#[test]
fn shared_memory_comes_back_after_a_burst_while_its_connections_stay() {
    let server = serve([("m", same("x:UINT8[-1] -> y:UINT8[-1]"))]);
    assert_eq!(send(&server, "m", 4 * MIB).status, 200);
    until("shared memory to be given back", || in_flight(&server, "segments") == 0);
    let before = resident(&server);
    let connections = [(); 6].map(|()| start(&server, "m", 3 * MIB));
    // They are read and stay open.
    for stream in &connections {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "HTTP/1.1 200 OK\r\n");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        reader.read_exact(&mut vec![0; 3 * MIB]).unwrap();
    }
    assert!(0 < in_flight(&server, "segments"));
    until("shared memory to be given back", || in_flight(&server, "segments") == 0);
    until("memory to come back", || resident(&server) < before + before / 10 + 4 * MIB);
}

#[test]
fn text_of_an_answer_has_its_room_before_it_is_written() {
    let server = serve([("text", native("identity", "x:BYTES[-1] -> y:BYTES[-1]"))]);
    // Control characters are six times as long in JSON.
    let size = 8 * MIB;
    let element = [&(size as u32).to_le_bytes()[..], &vec![1; size]].concat();
    let request = json!({
        "inputs": [{"name": "x", "datatype": "BYTES", "shape": [1],
                    "parameters": {"binary_data_size": element.len()}}],
    });
    let before = resident(&server);
    for _ in 0..3 {
        let answer = server.http.infer_binary("text", &request, &[&element]);
        assert_eq!(answer.status, 503, "{}", answer.text());
    }
    assert!(resident(&server) < before + 3 * size, "no text was written");
    is_all_given_back(&server);
    assert_eq!(server.http.get("/v2/health/live").status, 200);
}

#[test]
fn b4_the_lists_of_a_request_have_one_limit_together() {
    let server = serve([("m", identity())]);
    let of = |inputs: usize, dims: usize| {
        let input = format!(r#"{{"name":"","datatype":"","shape":[{}1]}}"#, "1,".repeat(dims - 1));
        format!(r#"{{"inputs":[{}]}}"#, vec![input; inputs].join(","))
    };
    for (inputs, dims, text) in [
        (20, 4000, "more than 65536 inputs, outputs, dimensions or parameters"),
        (1, 5000, "more than 4096 inputs, outputs, dimensions or parameters"),
        (1, 64, "unknown datatype ''"),
    ] {
        let refused = server.http.infer("m", of(inputs, dims));
        assert!(refused.status == 400 && refused.error().contains(text), "{}", refused.error());
    }
    let many = json!({"inputs": [{"name": "x", "datatype": "UINT8", "shape": vec![1; 65]}]});
    let text = "Unable to parse 'shape': 65 dimensions, expected at most 64";
    let error = server.infer("m", &many).error();
    assert!(error.starts_with(text), "{error}");
}

#[test]
fn messages_that_are_larger_than_any_may_be_are_counted_over_both_protocols() {
    let server =
        Server::with(Repository::of([("m", identity())]), &["--http-max-input-size=1048576"]);
    let refused = || refusals(&server, "size");
    assert_eq!(send(&server, "m", 2 * MIB).status, 400);
    assert_eq!(refused(), 1.0);
    let zeros = vec![b' '; 2 * MIB];
    let chunks = zeros.chunks(64 << 10);
    assert_eq!(server.http.send_chunks("/v2/models/m/infer", &[], chunks).status, 400);
    assert_eq!(refused(), 2.0);
    let mut grpc = Grpc::connect(server.grpc);
    let mut large = floats("m", &[("x", &[])]);
    large.raw_input_contents = vec![zeros.into()];
    assert_eq!(grpc.infer(large.clone()).unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(refused(), 3.0);
    let inflated = grpc.run(async |client| {
        let mut client = client.clone().send_compressed(CompressionEncoding::Gzip);
        client.model_infer(large).await
    });
    assert_eq!(inflated.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(refused(), 4.0);
    server.is_well();
}

#[test]
fn a1b_memory_comes_back_after_a_burst() {
    let server = serve([("m", native("identity", "x:FP64[-1] -> y:FP64[-1]"))]);
    let body = |count: usize| {
        let data = vec!["0.25"; count].join(",");
        format!(
            r#"{{"inputs":[{{"name":"x","datatype":"FP64","shape":[{count}],"data":[{data}]}}]}}"#
        )
    };
    assert_eq!(server.http.infer("m", body(1)).status, 200);
    let before = resident(&server);
    let large = body(500_000);
    let answers = at_once(8, |_| server.http.infer("m", &large).status);
    assert!(answers.contains(&200), "{answers:?}");
    is_all_given_back(&server);
    until("memory to come back", || resident(&server) < before + before / 10 + 4 * MIB);
}
