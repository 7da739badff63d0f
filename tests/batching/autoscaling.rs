//! Autoscaling: the number of a model's instances follows how long its requests wait.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use serde_json::Value;

use crate::support::{
    Model, Repository, Server,
    http::{floats, rows},
    models::delay,
    native,
    process::{descendants, is_alive},
    python, until,
};

const FLOATS: &str = "x:FP32[1] -> y:FP32[1]";

/// Answers with its process, after a while.
const SLEEPS: &str = "
    import time


    class TritonPythonModel:
        def initialize(self, args):
            if os.path.exists(BREAK):
                raise ValueError('no more of these')

        def execute(self, requests):
            time.sleep(0.1)
            y = pb_utils.Tensor('y', np.array([os.getpid()], np.float64).astype(np.float32))
            return [pb_utils.InferenceResponse([y]) for _ in requests]";

/// With test-sized times. The machine may have few cores: of these there may be more.
fn scaled(model: &Model, max: usize) -> Model {
    model.clone().with(format!(
        "instance_group {{ kind: KIND_MODEL scaling {{ max_count: {max} \
         target_queue_microseconds: 20000 scale_up_after_milliseconds: 100 \
         scale_down_after_milliseconds: 1500 }} }}"
    ))
}

/// A server in explicit mode with a model `m` that is loaded, and the model without its instances.
fn sleeping(max: usize) -> (Server, Model) {
    let repository = Repository::new();
    let broken = format!("'{}'", repository.beside("break").display());
    let model = python(FLOATS, &SLEEPS.replace("BREAK", &broken));
    let server = Server::explicit(repository.with("m", scaled(&model, max)));
    server.load("m").ok();
    (server, model)
}

fn one() -> Value {
    floats(&[("x", &[1.0])])
}

fn instances(server: &Server) -> Option<f64> {
    server.metric("troupe_instances", &["model=\"m\""])
}

fn scalings(server: &Server, direction: &str) -> f64 {
    let direction = format!("direction=\"{direction}\"");
    server.metric("troupe_instance_scalings_total", &["model=\"m\"", &direction]).unwrap()
}

/// Has 16 clients ask until this is through; the processes that answered, and how many answers there
/// were.
fn asked_during(server: &Server, test: impl FnOnce()) -> (BTreeSet<u32>, usize) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = || {
            let (mut processes, mut count) = (BTreeSet::new(), 0);
            while !is_over.load(SeqCst) {
                processes.insert(server.infer("m", &one()).numbers("y")[0] as u32);
                count += 1;
            }
            (processes, count)
        };
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(ask)).collect();
        // One that fails ends the clients, too.
        let tested = catch_unwind(AssertUnwindSafe(test));
        is_over.store(true, SeqCst);
        let all = clients.into_iter().map(|it| it.join().unwrap());
        let all = all.fold((BTreeSet::new(), 0), |(mut processes, count), (more, and)| {
            processes.extend(more);
            (processes, count + and)
        });
        tested.unwrap_or_else(|panic| resume_unwind(panic));
        all
    })
}

#[test]
fn instances_come_while_requests_wait_and_go_when_nobody_asks() {
    let (server, model) = sleeping(4);
    assert_eq!(instances(&server), Some(1.0));
    let (processes, answers) = asked_during(&server, || {
        until("all instances to be there", || instances(&server) == Some(4.0))
    });
    assert!(scalings(&server, "up") >= 2.0);
    server.logged("to 4 instances: ");
    until("one instance to be left", || instances(&server) == Some(1.0));
    assert!(scalings(&server, "down") >= 2.0);
    // Nothing was lost, and nothing loaded again.
    assert_eq!(server.successes("m"), answers as u64);
    until("the others to end", || processes.iter().filter(|it| is_alive(**it)).count() <= 1);
    // What is configured is shown as it was.
    let shown = server.http.get("/v2/models/m/config").ok().json()["instance_group"][0].clone();
    assert_eq!(
        (shown["count"].clone(), shown["scaling"]["max_count"].clone()),
        (1.into(), 4.into())
    );
    // Other limits are a reload in place; so is a number that is fixed.
    asked_during(&server, || {
        until("all instances to be there", || instances(&server) == Some(4.0));
        server.repository.write_file("m/config.pbtxt", scaled(&model, 2).config);
        server.load("m").ok();
        until("half of them to go", || instances(&server) == Some(2.0));
        let three = model.clone().with("instance_group { kind: KIND_MODEL count: 3 }");
        server.repository.write_file("m/config.pbtxt", three.config);
        server.load("m").ok();
        until("a third one", || instances(&server) == Some(3.0));
        server.repository.write_file("m/config.pbtxt", scaled(&model, 5).config);
        server.load("m").ok();
        until("it to follow the queue again", || instances(&server) == Some(5.0));
    });
    assert!(server.executions("m") > answers as u64);
    server.is_well();
}

#[test]
fn instances_come_while_the_queue_refuses_requests() {
    let body = "
    import time


    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(0.1)
            y = pb_utils.Tensor('y', np.zeros((1, 1), np.float32))
            return [pb_utils.InferenceResponse([y]) for _ in requests]";
    // Who has room in the queue waits for less than the target.
    let model = python(FLOATS, body)
        .batch(1)
        .with("dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
        .with(
            "instance_group { kind: KIND_MODEL scaling { max_count: 2 \
             target_queue_microseconds: 600000000 scale_up_after_milliseconds: 100 } }",
        );
    let server = Server::start(Repository::of([("m", model)]));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    server.http.infer("m", rows(&[("x", &[1.0])]));
                }
            });
        }
        let came = || until("a second one", || instances(&server) == Some(2.0));
        let tested = catch_unwind(AssertUnwindSafe(came));
        is_over.store(true, SeqCst);
        tested.unwrap_or_else(|panic| resume_unwind(panic));
    });
    server.logged("1 added, 0 removed, as the queue refused ");
    server.is_well();
}

#[test]
fn an_instance_that_cannot_be_opened_is_tried_again_later() {
    let (server, _) = sleeping(3);
    std::fs::write(server.repository.beside("break"), "").unwrap();
    asked_during(&server, || {
        server.logged("`m` stays at 1 instances, another could not be opened: ");
        server.logged("no more of these");
        assert_eq!(instances(&server), Some(1.0));
        std::fs::remove_file(server.repository.beside("break")).unwrap();
        until("the others to be opened", || instances(&server) == Some(3.0));
    });
    server.is_well();
}

#[test]
fn a_model_is_unloaded_while_instances_are_opened() {
    let (server, model) = sleeping(8);
    let processes = || descendants(server.pid).len();
    let with_one = processes();
    for _ in 0..3 {
        let requests: Vec<_> = (0..16).map(|_| server.http.start("m", &one())).collect();
        until("more instances", || instances(&server).is_some_and(|it| 1.0 < it));
        server.unload("m").ok();
        drop(requests);
        until("the model to be gone", || server.state("m").starts_with("UNAVAILABLE"));
        server.load("m").ok();
    }
    let fixed = model.with("instance_group { count: 1 }");
    server.repository.write_file("m/config.pbtxt", fixed.config);
    server.load("m").ok();
    server.infer("m", &one());
    until("the other processes to end", || processes() <= with_one);
    server.is_well();
}

#[test]
fn what_cannot_follow_a_queue_is_refused_where_it_stands() {
    let scaling = "instance_group { scaling { max_count: 4 } }";
    let op = native("identity", FLOATS).with(scaling);
    let ordered = delay(1, FLOATS)
        .batch(2)
        .with(scaling)
        .with("dynamic_batching { preserve_ordering: true }");
    let server = Server::explicit(Repository::of([("op", op), ("ordered", ordered)]));
    for (model, why) in [
        ("op", "its requests run at once, without a queue"),
        ("ordered", "with 'preserve_ordering' answers are kept in order"),
    ] {
        let error = server.load(model).error();
        assert!(error.contains(&format!("can not have 'scaling': {why}")), "{error}");
        assert!(error.contains(&format!("{model}/config.pbtxt:")), "{error}");
    }
}
