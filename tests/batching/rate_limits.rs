//! The rate limiter: what executes beside each other, in which order, and what comes back when.
//! Gates hold executions, so nothing depends on speed.

use std::{fs, net::TcpStream};

use serde_json::Value;

use crate::support::{
    Model, Repository, Server, ensemble,
    gate::Gate,
    http::{finish, rows},
    models::execute,
    until,
};

const ROW: &str = "x:FP32[1] -> y:FP32[1]";
const BODY: &str = "
    NOTE
    pass_gate()
    get = pb_utils.get_input_tensor_by_name
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy())])
        for it in requests
    ]";
const LIMITED: &str = "--rate-limit=execution_count";
/// Requests come to the batchers in the order in which they were sent.
const ONE_THREAD: &str = "--engine-thread-count=1";

/// A model that waits at the gate, and notes its letter in the file when it begins to execute.
fn noting(repository: &Repository, gate: &Gate, letter: char, limits: &str) -> Model {
    let notes = repository.beside("notes");
    let note = format!("open('{}', 'a').write('{letter}')", notes.display());
    let group = format!("instance_group {{ rate_limiter {{ {limits} }} }}");
    gate.guard(ROW, &BODY.replace("NOTE", &note)).batch(1).with(group)
}

fn notes(server: &Server) -> String {
    fs::read_to_string(server.repository.beside("notes")).unwrap_or_default()
}

fn request() -> Value {
    rows(&[("x", &[1.0])])
}

fn pending(server: &Server, model: &str) -> f64 {
    let label = format!("model=\"{model}\"");
    server.metric("nv_inference_pending_request_count", &[&label]).unwrap()
}

/// Sends so many requests; each waits when this returns.
fn queue(server: &Server, model: &str, count: usize) -> Vec<TcpStream> {
    let before = pending(server, model);
    let ask = |_| server.http.start(model, &request());
    let streams = (0..count).map(ask).collect();
    until("the requests to queue", || pending(server, model) == before + count as f64);
    // What the thread was sent before, it has done.
    assert_eq!(server.http.get("/v2/health/live").status, 200);
    streams
}

fn all_answered(streams: impl IntoIterator<Item = TcpStream>) {
    streams.into_iter().for_each(|it| assert_eq!(finish(it).numbers("y"), [1.0]));
}

#[test]
fn models_share_a_resource_by_their_executions_and_priorities() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let limits = |priority| format!("resources {{ name: 'R' count: 1 }} priority: {priority}");
    let a = noting(&repository, &gate, 'a', &limits(1));
    let b = noting(&repository, &gate, 'b', &limits(2));
    let server = Server::with(repository.with("a", a).with("b", b), &[LIMITED, ONE_THREAD]);
    server.logged("EXEC_COUNT");
    let first = server.http.start("a", &request());
    gate.is_reached();
    let mut asked = queue(&server, "b", 6);
    asked.extend(queue(&server, "a", 5));
    assert_eq!(notes(&server), "a", "whoever waits for the resource does not execute");
    gate.let_through(12);
    all_answered(asked.into_iter().chain([first]));
    assert_eq!(notes(&server), "ababaabaabbb");
    server.is_well();
}

#[test]
fn without_the_flag_nobody_looks_at_resources() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let limits = "resources { name: 'R' count: 1 } resources { name: 'R' global: true count: 9 }";
    let [a, b] = ['a', 'b'].map(|letter| noting(&repository, &gate, letter, limits));
    let server = Server::start(repository.with("a", a).with("b", b));
    let asked = ["a", "b"].map(|model| server.http.start(model, &request()));
    gate.is_reached();
    gate.is_reached();
    gate.let_through(2);
    all_answered(asked);
}

#[test]
fn a_big_job_blocks_no_small_ones_and_has_its_turn_when_there_is_enough() {
    let repository = Repository::new();
    let [slow, quick] = ["slow", "quick"].map(|name| Gate::new(&repository, name));
    let limits = |count| format!("resources {{ name: 'R' global: true count: {count} }}");
    let a = noting(&repository, &slow, 'a', &limits(1));
    let b = noting(&repository, &quick, 'b', &limits(1));
    let big = noting(&repository, &quick, 'B', &limits(2));
    let repository = repository.with("a", a).with("b", b).with("big", big);
    let flags = [LIMITED, "--rate-limit-resource=R:2", ONE_THREAD];
    let server = Server::with(repository, &flags);
    let first = server.http.start("a", &request());
    slow.is_reached();
    let waits = queue(&server, "big", 1);
    quick.let_through(4);
    for _ in 0..3 {
        assert_eq!(server.infer("b", &request()).numbers("y"), [1.0]);
    }
    assert_eq!(notes(&server), "abbb");
    slow.let_through(1);
    all_answered(waits.into_iter().chain([first]));
    assert_eq!(notes(&server), "abbbB");
}

#[test]
fn resources_come_back_when_a_worker_dies_or_its_client_has_gone() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let limits = "resources { name: 'R' count: 1 }";
    let group = format!("instance_group {{ rate_limiter {{ {limits} }} }}");
    let dying = execute(ROW, "os._exit(1)").batch(1).with(group);
    let [a, b] = ['a', 'b'].map(|letter| noting(&repository, &gate, letter, limits));
    let repository = repository.with("a", a).with("b", b).with("dying", dying);
    let server = Server::with(repository, &[LIMITED, ONE_THREAD]);
    assert_eq!(server.infer("dying", &request()).status, 503);
    let first = server.http.start("a", &request());
    gate.is_reached();
    drop(queue(&server, "b", 2));
    until("those whose clients have gone to go", || pending(&server, "b") == 0.0);
    let last = queue(&server, "b", 1);
    drop(first);
    gate.let_through(3);
    all_answered(last);
    gate.let_through(3);
    assert_eq!(server.infer("dying", &request()).status, 503);
    assert_eq!(server.infer("a", &request()).numbers("y"), [1.0]);
}

/// Nobody can give back what the caller holds, so that the model it calls gets its turn.
#[test]
fn a_call_that_waits_for_what_its_caller_holds_fails() {
    let calls = |asked: &str| {
        let body = "
    def answer(it):
        x = pb_utils.get_input_tensor_by_name(it, 'x')
        if x.as_numpy()[0] == 0:
            return pb_utils.InferenceResponse([pb_utils.Tensor('y', x.as_numpy())])
        return pb_utils.InferenceRequest(
            model_name='ASKED', inputs=[x], requested_output_names=['y']).exec()

    return [answer(it) for it in requests]";
        let group = "instance_group { rate_limiter { resources { name: 'R' count: 1 } } }";
        execute(ROW, &body.replace("ASKED", asked)).batch(1).with(group)
    };
    let repository = Repository::of([("outer", calls("between")), ("inner", calls("inner"))])
        .with("between", ensemble("x:FP32[1] -> y:FP32[1]", &["inner: x=x -> y=y"]).batch(1));
    let server = Server::with(repository, &[LIMITED]);
    for _ in 0..2 {
        let answer = server.infer("outer", &request());
        let text = "requests wait for resources that their callers hold: 'outer' calls 'between'";
        assert!(answer.error().contains(text), "{}", answer.error());
        assert_eq!(answer.status, 503);
        // Both are free again.
        for model in ["inner", "outer"] {
            assert_eq!(server.infer(model, &rows(&[("x", &[0.0])])).numbers("y"), [0.0]);
        }
    }
    server.is_well();
}

/// What a call needs is free, but kept for a big execution which waits for the caller.
#[test]
fn a_call_that_a_reservation_keeps_back_from_its_caller_fails() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    // The big one is passed over until it has waited too long.
    let calls = "
    pass_gate()
    x = pb_utils.get_input_tensor_by_name(requests[0], 'x')
    while True:
        answer = pb_utils.InferenceRequest(
            model_name='inner', inputs=[x], requested_output_names=['y']).exec()
        if answer.has_error():
            return [answer]";
    let echo = BODY.replace("NOTE", "").replace("pass_gate()", "");
    let limits = |count| {
        format!("instance_group {{ rate_limiter {{ resources {{ name: 'R' count: {count} }} }} }}")
    };
    let repository = repository
        .with("outer", gate.guard(ROW, calls).batch(1).with(limits(1)))
        .with("inner", execute(ROW, &echo).batch(1).with(limits(1)))
        .with("big", execute(ROW, &echo).batch(1).with(limits(2)));
    let flags = [LIMITED, "--rate-limit-resource=R:2", ONE_THREAD];
    let server = Server::with(repository, &flags);
    let caller = server.http.start("outer", &request());
    gate.is_reached();
    let waits = queue(&server, "big", 1);
    gate.let_through(1);
    let answer = finish(caller);
    let text = "requests wait for resources that their callers hold: 'outer' calls 'inner'";
    assert!(answer.error().contains(text), "{}", answer.error());
    all_answered(waits);
    assert_eq!(server.infer("inner", &request()).numbers("y"), [1.0]);
    server.is_well();
}

#[test]
fn what_could_never_execute_is_not_loaded() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let limits = |text: &str| format!("resources {{ {text} }}");
    let fits = noting(&repository, &gate, 'f', &limits("name: 'R' count: 2"));
    let greedy = noting(&repository, &gate, 'g', &limits("name: 'R' count: 3"));
    let global = noting(&repository, &gate, 'l', &limits("name: 'R' count: 1 global: true"));
    let repository = repository.with("fits", fits).with("greedy", greedy).with("global", global);
    let flags = [LIMITED, "--rate-limit-resource=R:2", "--model-control-mode=explicit"];
    let server = Server::with(repository, &flags);
    assert_eq!(server.load("fits").status, 200);
    let refused = |model: &str, text: &str| {
        let error = server.load(model).error();
        assert!(error.contains(text), "{error}");
    };
    refused(
        "greedy",
        "Resource count for \"R\" is limited to 2 which will prevent scheduling of one or more \
         model instances, the minimum required count is 3",
    );
    let both = "Resource \"R\" is present as both global and device-specific resource in the model \
                configuration.";
    refused("global", both);
    // A model that is loaded again is there twice for a while; one that has gone leaves its name.
    assert_eq!(server.load("fits").status, 200);
    assert_eq!(server.unload("fits").status, 200);
    let loaded = || server.load("global").status == 200;
    until("the model that has gone to need nothing", loaded);
    gate.let_through(1);
    assert_eq!(server.infer("global", &request()).numbers("y"), [1.0]);
}
