//! Live scaling: a reload that changes only how many instances there are adds and removes them while
//! the model serves on.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, ensemble,
    gate::Gate,
    http::{finish, floats},
    models::delay,
    python, until,
};

const FLOATS: &str = "x:FP32[1] -> y:FP32[1]";

/// Answers with its process.
const PROCESS: &str = "
    class TritonPythonModel:
        def initialize(self, args):
            if os.path.exists(BREAK):
                raise ValueError('no more of these')

        def execute(self, requests):
            PASS
            y = pb_utils.Tensor('y', np.array([os.getpid()], np.float64).astype(np.float32))
            return [pb_utils.InferenceResponse([y]) for _ in requests]";

fn instances(model: &Model, count: usize) -> String {
    format!("{}instance_group {{ count: {count} }}\n", model.config)
}

fn one() -> Value {
    floats(&[("x", &[1.0])])
}

fn shown_count(server: &Server, model: &str) -> Value {
    server.http.get(&format!("/v2/models/{model}/config")).ok().json()["instance_group"][0]["count"]
        .clone()
}

fn scale(server: &Server, name: &str, model: &Model, count: usize) {
    server.repository.write_file(&format!("{name}/config.pbtxt"), instances(model, count));
    server.load(name).ok();
    assert_eq!(shown_count(server, name), count);
}

fn is_alive(process: f64) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// A server in explicit mode with a model `m` of processes that wait at the gate, and an ensemble of it.
fn processes(gate: bool) -> (Server, Model, Gate) {
    let repository = Repository::new();
    let door = Gate::new(&repository, "gate");
    let pass = if gate { "pass_gate()" } else { "pass" };
    let broken = format!("'{}'", repository.beside("break").display());
    let source = PROCESS.replace("PASS", pass).replace("BREAK", &broken);
    let model = door.passed_by(python(FLOATS, &source));
    let outer = ensemble("A:FP32[1] -> B:FP32[1]", &["m: x=A -> y=B"]);
    let first = Model { config: instances(&model, 1), ..model.clone() };
    let server = Server::explicit(repository.with("m", first).with("e", outer));
    server.load("e").ok();
    (server, model, door)
}

#[test]
fn instances_come_and_go_while_others_execute() {
    let (server, model, gate) = processes(true);
    let first = server.http.start("m", &one());
    gate.is_reached();
    let second = server.http.start("e", &floats(&[("A", &[1.0])]));
    scale(&server, "m", &model, 2);
    // The one that waited for the first instance has the new one.
    gate.is_reached();
    // Whichever goes, it is not interrupted.
    scale(&server, "m", &model, 1);
    gate.let_through(2);
    let processes = [finish(first).numbers("y")[0], finish(second).numbers("B")[0]];
    assert_ne!(processes[0], processes[1]);
    until("one of the instances to end", || {
        processes.iter().filter(|it| is_alive(**it)).count() == 1
    });
    gate.let_through(1);
    let last = server.infer("m", &one()).numbers("y")[0];
    assert!(processes.contains(&last) && is_alive(last));
    // Nothing was loaded again: neither the model nor the ensemble.
    assert_eq!((server.executions("m"), server.successes("e")), (3, 1));
    server.is_well();
}

#[test]
fn an_instance_that_cannot_be_opened_leaves_the_model_as_it_was() {
    let (server, model, _) = processes(false);
    let before = server.infer("m", &one()).numbers("y")[0];
    fs::write(server.repository.beside("break"), "").unwrap();
    server.repository.write_file("m/config.pbtxt", instances(&model, 3));
    let error = server.load("m").error();
    assert!(error.contains("no more of these"), "{error}");
    assert_eq!(shown_count(&server, "m"), 1);
    assert_eq!(server.infer("m", &one()).numbers("y")[0], before);
    assert!(server.state("m").starts_with("READY"), "{}", server.state("m"));
    fs::remove_file(server.repository.beside("break")).unwrap();
    server.load("m").ok();
    assert_eq!(shown_count(&server, "m"), 3);
    server.logged("scaled `m` to 3 instances: 2 added, 0 removed");
    assert!(is_alive(before));
}

#[test]
fn a_load_whose_config_means_the_same_changes_nothing() {
    let (server, model, _) = processes(false);
    let before = server.infer("e", &floats(&[("A", &[1.0])])).numbers("B")[0];
    let told = "`m` version 1 is not loaded again: it goes on as it is";
    let stays = |count: u64| {
        assert_eq!(server.infer("m", &one()).numbers("y")[0], before);
        assert_eq!(server.executions("m"), count);
        server.logged(told);
    };
    let first = instances(&model, 1);
    let same = [
        format!("# A comment.\n\n{first}"),
        instances(&model, 0),
        format!("{first} version_policy {{ all {{ }} }}"),
        first.clone(),
    ];
    for (count, text) in (2..).zip(&same) {
        server.repository.write_file("m/config.pbtxt", text);
        server.load("m").ok();
        stays(count);
    }
    let shown = server.http.get("/v2/models/m/config").ok().json();
    assert_eq!(shown["version_policy"], json!({ "latest": { "num_versions": 1 } }));
    let body = json!({ "parameters": { "config": shown.to_string() } });
    server.http.post("/v2/repository/models/m/load", &body).ok();
    stays(6);
    let read = |file| fs::read_to_string(server.repository.models().join(file)).unwrap();
    let outer = read("e/config.pbtxt");
    server.repository.write_file("e/config.pbtxt", format!("# A comment.\n{outer}"));
    server.load("e").ok();
    assert_eq!(server.successes("e"), 1);
    server.logged("`e` version 1 is not loaded again: it goes on as it is");
    // Files that changed are loaded, whatever they say now.
    server.repository.write_file("m/1/model.py", read("m/1/model.py"));
    server.load("m").ok();
    assert_eq!(server.executions("m"), 0);
    until("the old instance to end", || !is_alive(before));
}

#[test]
fn what_changes_more_is_loaded_again() {
    let (server, model, _) = processes(false);
    let before = server.infer("m", &one()).numbers("y")[0];
    let more = instances(&model, 2) + "parameters { key: \"k\" value { string_value: \"v\" } }";
    server.repository.write_file("m/config.pbtxt", more);
    server.load("m").ok();
    assert_eq!(server.executions("m"), 0);
    until("the old instance to end", || !is_alive(before));
}

#[test]
fn no_request_is_lost_while_the_number_goes_up_and_down() {
    let slow = delay(1, FLOATS).parameter("placement", "own");
    let quick = delay(0, FLOATS);
    let batched =
        delay(1, FLOATS).parameter("placement", "own").with("dynamic_batching { }").batch(4);
    let models = [("slow", slow), ("quick", quick), ("batched", batched)];
    let repository = Repository::of(models.clone());
    let server = Server::with(repository, &["--model-control-mode=explicit", "--load-model=*"]);
    let is_over = AtomicBool::new(false);
    let seen: Vec<usize> = thread::scope(|scope| {
        let ask = |name: &'static str| {
            let (server, is_over) = (&server, &is_over);
            let shape: &[i64] = if name == "batched" { &[1, 1] } else { &[1] };
            let input = json!({"name": "x", "datatype": "FP32", "shape": shape, "data": [1.0]});
            let request = json!({ "inputs": [input] });
            move || {
                let mut count = 0;
                while !is_over.load(SeqCst) {
                    assert_eq!(server.infer(name, &request).numbers("y"), [1.0]);
                    count += 1;
                }
                count
            }
        };
        let names = ["slow", "slow", "quick", "quick", "batched", "batched"];
        let asking: Vec<_> = names.map(|name| scope.spawn(ask(name))).into_iter().collect();
        for round in 0..3 {
            for (name, model) in &models {
                for count in [4, 1, 2 + round] {
                    scale(&server, name, model, count);
                }
            }
        }
        is_over.store(true, SeqCst);
        asking.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert!(seen.iter().all(|count| *count != 0), "{seen:?}");
    let pending: BTreeSet<String> = models
        .iter()
        .filter(|(name, _)| {
            let label = format!("model=\"{name}\"");
            server.metric("nv_inference_pending_request_count", &[&label]) != Some(0.0)
        })
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert!(pending.is_empty(), "{pending:?}");
    server.is_well();
}
