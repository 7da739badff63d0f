//! What keeps a model busy, or is reloaded again and again, harms nobody else.

use std::net::TcpStream;

use serde_json::json;

use crate::support::{
    Repository, Server, at_once, ensemble,
    gate::Gate,
    http::{finish, floats, input},
    models::{execute, native},
    process, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Timers that a server has open.
fn timers(server: &Server) -> usize {
    let all = process::descriptors(server.pid);
    all.iter().filter(|it| it.to_string_lossy().contains("[timerfd]")).count()
}

#[test]
fn a_model_that_is_reloaded_leaves_no_timer_behind() {
    let delayed = native("identity", FLOATS)
        .batch(4)
        .with("dynamic_batching { max_queue_delay_microseconds: 100 }");
    let server = Server::explicit(Repository::of([("m", delayed)]));
    server.load("m").ok();
    let one = timers(&server);
    for _ in 0..10 {
        server.unload("m").ok();
        server.load("m").ok();
    }
    until("the timers of earlier loads are gone", || timers(&server) <= one);
    server.unload("m").ok();
    until("its own is gone too", || timers(&server) < one);
}

#[test]
fn requests_behind_a_slow_one_go_to_an_instance_that_rests() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let body = "
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()
            if x[0] == 7:
                pass_gate()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]))
        return answers";
    let model = gate.guard(FLOATS, body).with("instance_group { count: 2 }");
    let server = Server::start(repository.with("m", model));
    let fast = floats(&[("x", &[1.0])]);
    // Until many are handed over at once.
    let burst = || {
        let streams: Vec<TcpStream> = (0..64).map(|_| server.http.start("m", &fast)).collect();
        streams.into_iter().map(finish).all(|answer| answer.status == 200)
    };
    for _ in 0..40 {
        assert!(burst());
    }
    for _ in 0..5 {
        let slow = server.http.start("m", &floats(&[("x", &[7.0])]));
        // None of them waits until the slow one is let through.
        assert!(burst());
        gate.is_reached();
        gate.let_through(1);
        finish(slow).ok();
    }
    assert!(server.successes("m") == 45 * 64 + 5);
    server.is_well();
}

#[test]
fn many_equal_loads_at_once_are_few() {
    let server = Server::explicit(Repository::of([("m", native("identity", FLOATS))]));
    let answers = at_once(100, |_| server.load("m").status);
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    let loads = server.log().matches("loaded `m` version").count();
    assert!((1..=50).contains(&loads), "{loads} loads: {}", server.log());
    // One that comes later is another one.
    server.load("m").ok();
    server.infer("m", &floats(&[("x", &[1.0])])).ok();
}

#[test]
fn a_batch_without_a_byte_does_not_run_thousands_of_times() {
    let step = execute(
        FLOATS,
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
    );
    let server = Server::start(
        Repository::of([("step", step.batch(1))])
            .with("all", ensemble(FLOATS, &["step: x=x -> y=y"]).batch(16384)),
    );
    let request = json!({"inputs": [input("x", "FP32", &[16384, 0], json!([]))]});
    server.infer("all", &request).refuses(400, "at most 16 are allowed");
    assert_eq!(server.executions("step"), 0);
    let request = json!({"inputs": [input("x", "FP32", &[16, 0], json!([]))]});
    server.infer("all", &request).ok();
    assert_eq!(server.executions("step"), 16);
}

#[test]
fn too_many_instances_are_refused_by_number() {
    let server = Server::explicit(Repository::of([("m", native("identity", FLOATS))]));
    for count in [-5i64, 1025, 3_000_000] {
        let config = json!({
            "backend": "native",
            "parameters": {"op": {"string_value": "identity"}},
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
            "instance_group": [{"kind": "KIND_CPU", "count": count}],
        });
        let body = json!({"parameters": {"config": config.to_string()}});
        let answer = server.http.post("/v2/repository/models/m/load", &body);
        answer.refuses(400, &format!("has count {count}, expected a number from 1 on"));
    }
    server.load("m").ok();
}

#[test]
fn what_a_model_asks_for_a_client_that_has_gone_is_not_begun() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let asks = execute(
        FLOATS,
        "
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, 'x')
            for turn in range(3):
                call = pb_utils.InferenceRequest(
                    model_name='held', requested_output_names=['y'], inputs=[x])
                call.exec()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x.as_numpy())]))
        return answers",
    );
    let repository = repository.with("asks", asks).with("held", gate.model("FP32[-1]"));
    let server = Server::start(repository);
    let stream = server.http.start("asks", &floats(&[("x", &[1.0])]));
    gate.is_reached();
    drop(stream);
    until("its request has failed", || {
        server.stats("asks")["inference_stats"]["fail"]["count"] == 1
    });
    // Its second and third call come when nobody waits for them; those of the next request are three.
    gate.let_through(6);
    server.infer("asks", &floats(&[("x", &[1.0])])).ok();
    // The first one was under way, and counts if it ended before it was given up.
    let executions = server.executions("held");
    assert!((3..=4).contains(&executions), "{executions}");
}

#[test]
fn a_request_that_is_far_longer_than_hundreds_before_it_keeps_nobody_waiting() {
    let repository = Repository::of([("other", native("identity", FLOATS))]).with_onnx("repeat");
    let server = Server::with(repository, &["--http-thread-count=1"]);
    let rows = |count: i64| {
        let output = json!({"name": "OUTPUT0", "parameters": {"binary_data": true}});
        json!({"inputs": [input("count", "INT64", &[1], [count])], "outputs": [output]})
    };
    for _ in 0..300 {
        server.infer("repeat", &rows(1)).ok();
    }
    let long: Vec<TcpStream> =
        (0..6).map(|_| server.http.start("repeat", &rows(10_000_000))).collect();
    // They came first, on the same thread, and would all be through before these.
    assert_eq!(server.http.get("/v2/health/live").status, 200);
    server.infer("other", &floats(&[("x", &[1.0])])).ok();
    assert!(server.successes("repeat") < 306, "the other model waited for all of them");
    drop(long);
    server.is_well();
}
