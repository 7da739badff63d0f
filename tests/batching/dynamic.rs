//! Dynamic batching: which requests run together, proven by statistics; a gate holds the instance.

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, at_once, ensemble,
    gate::Gate,
    http::{input, rows},
    models::execute,
    native, until,
};

/// One row of one element, in and out.
const ROW: &str = "x:FP32[1] -> y:FP32[1]";

/// Executed batch sizes, and how often.
fn batches(server: &Server, model: &str) -> Vec<(u64, u64)> {
    let stats = server.stats(model);
    let number = |it: &Value| it.as_u64().unwrap();
    let of = |it: &Value| (number(&it["batch_size"]), number(&it["compute_infer"]["count"]));
    let batches: Vec<_> = stats["batch_stats"].as_array().unwrap().iter().map(of).collect();
    let executions: u64 = batches.iter().map(|it| it.1).sum();
    let inferences: u64 = batches.iter().map(|it| it.0 * it.1).sum();
    assert_eq!(stats["execution_count"], executions, "{stats}");
    assert_eq!(stats["inference_count"], inferences, "{stats}");
    batches
}

/// Holds the instance with one request of one row, lets `sizes` queue up in this order, and opens.
///
/// Answers the batches that were executed behind the first one.
fn executed(scheduling: &str, max_batch: u32, sizes: &[usize]) -> Vec<(u64, u64)> {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let model = gate.model("FP32[1]").batch(max_batch).with(scheduling);
    let server = Server::start(repository.with("m", model));
    let send = |row: usize, rows_of: usize| {
        let values: Vec<f32> = (0..rows_of).map(|it| (row * 100 + it) as f32).collect();
        server.http.start("m", &rows(&[("x", &values)]))
    };
    let pending =
        || server.metric("nv_inference_pending_request_count", &["model=\"m\""]).unwrap() as usize;
    let first = send(0, 1);
    gate.is_reached();
    let mut open = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        open.push(send(index + 1, *size));
        until("the request to queue", || pending() == index + 1);
    }
    gate.let_through(1 + sizes.len());
    crate::support::http::finish(first).ok();
    for (index, (size, connection)) in sizes.iter().zip(open).enumerate() {
        let answer = crate::support::http::finish(connection);
        let expected: Vec<f64> = (0..*size).map(|it| ((index + 1) * 100 + it) as f64).collect();
        assert_eq!(answer.numbers("y"), expected);
        assert_eq!(answer.shape("y"), json!([size, 1]));
    }
    until("nothing to wait any more", || pending() == 0);
    let mut batches = batches(&server, "m");
    let first = batches.iter_mut().find(|it| it.0 == 1).expect("the first ran alone");
    first.1 -= 1;
    batches.retain(|it| it.1 != 0);
    batches
}

#[test]
fn what_queued_up_runs_together_up_to_the_largest_batch() {
    let dynamic = "dynamic_batching {}";
    for (max_batch, sizes, expected) in [
        (8, &[1, 1, 1, 1, 1][..], vec![(5, 1)]),
        (8, &[3, 2], vec![(5, 1)]),
        (4, &[1; 10], vec![(2, 1), (4, 2)]),
        (4, &[3, 2, 2], vec![(3, 1), (4, 1)]),
    ] {
        assert_eq!(executed(dynamic, max_batch, sizes), expected, "{sizes:?} up to {max_batch}");
    }
}

#[test]
fn a_preferred_size_is_taken_when_it_can_be_filled() {
    let scheduling = "dynamic_batching { preferred_batch_size: [4] }";
    assert_eq!(executed(scheduling, 8, &[1; 5]), [(1, 1), (4, 1)]);
}

#[test]
fn without_dynamic_batching_every_request_runs_alone() {
    assert_eq!(executed("", 8, &[1, 1, 2]), [(1, 2), (2, 1)]);
}

#[test]
fn a_full_preferred_batch_does_not_wait_for_the_delay() {
    let an_hour = "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: \
                   3600000000 }";
    let model = native("identity", ROW).batch(8).with(an_hour);
    let server = Server::start(Repository::of([("m", model)]));
    for (value, answer) in
        at_once(4, |it| (it as f64, server.infer("m", &rows(&[("x", &[it as f32])])))).into_iter()
    {
        assert_eq!(answer.numbers("y"), [value]);
    }
    assert_eq!(batches(&server, "m"), [(4, 1)]);
}

#[test]
fn a_delay_that_is_over_sends_what_is_there() {
    let scheduling = "dynamic_batching { preferred_batch_size: [8] max_queue_delay_microseconds: \
                      2000 }";
    let model = native("identity", ROW).batch(8).with(scheduling);
    let server = Server::start(Repository::of([("m", model)]));
    let answer = server.infer("m", &rows(&[("x", &[1.0, 2.0])]));
    assert_eq!(answer.numbers("y"), [1.0, 2.0]);
    assert_eq!(batches(&server, "m"), [(2, 1)]);
    // It waited for more before it ran.
    let queue = server.stats("m")["inference_stats"]["queue"]["ns"].as_u64().unwrap();
    assert!(2_000_000 <= queue, "queued for {queue} ns");
}

#[test]
fn requests_of_other_shapes_do_not_run_together() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let model = gate.model("FP32[-1]").batch(8).with("dynamic_batching {}");
    let server = Server::start(repository.with("m", model));
    let request = |columns: usize| json!({"inputs": [input("x", "FP32", &[1, columns as i64], vec![1.0; columns])]});
    let first = server.http.start("m", &request(1));
    gate.is_reached();
    let mut open = vec![first];
    for (index, columns) in [2, 2, 3].into_iter().enumerate() {
        open.push(server.http.start("m", &request(columns)));
        until("the request to queue", || {
            let pending = server.metric("nv_inference_pending_request_count", &["model=\"m\""]);
            pending == Some((index + 1) as f64)
        });
    }
    gate.let_through(4);
    let columns = open.into_iter().map(|it| crate::support::http::finish(it).numbers("y").len());
    assert_eq!(columns.collect::<Vec<_>>(), [1, 2, 2, 3]);
    assert_eq!(batches(&server, "m"), [(1, 2), (2, 1)]);
}

#[test]
fn steps_of_different_ensemble_requests_run_together() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let steps = ["before: x=A -> y=m", "slow: x=m -> y=Z"];
    let server = Server::start(
        repository
            .with("before", native("identity", ROW).batch(8))
            .with("slow", gate.model("FP32[1]").batch(8).with("dynamic_batching {}"))
            .with("e", ensemble("A:FP32[1] -> Z:FP32[1]", &steps).batch(8)),
    );
    let send = |value: f32| server.http.start("e", &rows(&[("A", &[value])]));
    let first = send(0.0);
    gate.is_reached();
    let others: Vec<_> = (1..7).map(|it| send(it as f32)).collect();
    until("all to wait for the second step", || {
        server.metric("nv_inference_pending_request_count", &["model=\"slow\""]) == Some(6.0)
    });
    gate.let_through(2);
    for (value, connection) in [first].into_iter().chain(others).enumerate() {
        let answer = crate::support::http::finish(connection);
        assert_eq!(answer.numbers("Z"), [value as f64]);
    }
    assert_eq!(batches(&server, "slow"), [(1, 1), (6, 1)]);
}

/// Two instances; a request whose value is 0 waits at the gate, others do not.
fn two_instances(gate: &Gate, scheduling: &str) -> Model {
    let body = "
        answers = []
        for it in requests:
            x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
            if not x.any():
                pass_gate()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]))
        return answers";
    let model = gate.guard(ROW, body).batch(1).with(scheduling);
    model.with("instance_group { count: 2 kind: KIND_CPU }")
}

#[test]
fn several_instances_work_at_the_same_time() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let server = Server::start(repository.with("m", two_instances(&gate, "")));
    let slow = server.http.start("m", &rows(&[("x", &[0.0])]));
    gate.is_reached();
    assert_eq!(server.infer("m", &rows(&[("x", &[1.0])])).numbers("y"), [1.0]);
    assert_eq!(server.successes("m"), 1);
    gate.let_through(1);
    assert_eq!(crate::support::http::finish(slow).numbers("y"), [0.0]);
}

#[test]
fn preserved_order_holds_answers_back() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let model = two_instances(&gate, "dynamic_batching { preserve_ordering: true }");
    let server = Server::start(repository.with("m", model));
    let first = server.http.start("m", &rows(&[("x", &[0.0])]));
    gate.is_reached();
    let second = server.http.start("m", &rows(&[("x", &[1.0])]));
    until("the second to be executed", || server.executions("m") == 1);
    assert_eq!(server.successes("m"), 0, "the second was answered before the first");
    gate.let_through(1);
    assert_eq!(crate::support::http::finish(first).numbers("y"), [0.0]);
    assert_eq!(crate::support::http::finish(second).numbers("y"), [1.0]);
}

#[test]
fn many_callers_get_their_own_answers() {
    let doubling = execute(
        ROW,
        "
        answers = []
        for it in requests:
            x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x * 2)]))
        return answers",
    );
    let batching = "dynamic_batching {}\ninstance_group { count: 2 }";
    let steps = ["a: x=A -> y=m", "b: x=m -> y=Z"];
    let server = Server::start(
        Repository::new()
            .with("a", doubling.batch(16).with(batching))
            .with("b", native("identity", ROW).batch(16).with(batching))
            .with("e", ensemble("A:FP32[1] -> Z:FP32[1]", &steps).batch(16)),
    );
    at_once(16, |caller| {
        for turn in 0..20 {
            let value = (caller * 1000 + turn) as f32;
            let answer = server.infer("e", &rows(&[("A", &[value, -value])]));
            assert_eq!(answer.numbers("Z"), [f64::from(value) * 2.0, f64::from(value) * -2.0]);
        }
    });
    for model in ["a", "b", "e"] {
        let stats = server.stats(model);
        assert_eq!(stats["inference_stats"]["success"]["count"], 320, "{model}: {stats}");
        assert_eq!(stats["inference_count"], 640, "{model}: {stats}");
    }
    server.is_well();
}
