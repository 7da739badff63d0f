//! `--watch`: models are loaded again as their files are saved; and `troupe models`, `troupe reload`.

use std::os::unix::fs::symlink;

use serde_json::json;

use crate::support::{
    Model, Repository, Server, ensemble, eventually,
    http::floats,
    native, process, python,
    server::{Ended, troupe},
    until,
};

use crate::life::repository::{FLOATS, id, one};

/// Answers with the number that stands in a file beside the model's.
fn constant() -> Model {
    python(
        FLOATS,
        "
        from . import helper

        class TritonPythonModel:
            def execute(self, requests):
                y = pb_utils.Tensor('y', np.array([helper.NUMBER], np.float32))
                return [pb_utils.InferenceResponse([y]) for _ in requests]",
    )
}

fn answer(server: &Server, model: &str) -> Option<f64> {
    let answer = server.infer(model, &one());
    (answer.status == 200).then(|| answer.numbers("y")[0])
}

fn ask(server: &Server, arguments: &[&str]) -> Ended {
    let url = server.grpc.to_string();
    troupe(&[arguments, &["--url", &url]].concat())
}

#[test]
fn what_is_saved_is_loaded_and_what_is_broken_is_not() {
    let repository = Repository::new().with("m", constant()).with("e", through("m"));
    repository.write_file("m/1/helper.py", "NUMBER = 1\n");
    symlink("/nowhere", repository.models().join("dangling")).unwrap();
    let mut server = Server::with(repository, &["--watch"]);
    assert_eq!(answer(&server, "e"), Some(1.0));
    // What editors leave beside a file, and Python's cache, load nothing.
    for passing in ["m/1/.model.py.swp", "m/1/model.py~", "m/1/__pycache__/model.pyc", "m/4913"] {
        server.repository.write_file(passing, "passing");
    }
    server.repository.write_file("m/1/helper.py", "NUMBER = 2\n");
    until("the helper that was saved to be used", || answer(&server, "e") == Some(2.0));
    let log = server.log();
    assert!(log.contains("`m` has changed: 1/helper.py"), "{log}");
    assert!(!log.contains("`m` has changed: 1/.model.py.swp"), "{log}");
    server.repository.write_file("m/1/helper.py", "NUMBER = \n");
    server.logged("`m` goes on as it was loaded before");
    assert!(server.log().contains("SyntaxError"), "{}", server.log());
    assert_eq!(answer(&server, "e"), Some(2.0));
    server.repository.write_file("m/1/helper.py", "NUMBER = 3\n");
    until("what was mended to be used", || answer(&server, "e") == Some(3.0));
    // New models come, and those whose folder is taken away go.
    server.repository.write("n", &id());
    until("the new model to answer", || answer(&server, "n").is_some());
    server.repository.remove("n");
    until("the model that is gone to answer no more", || answer(&server, "n").is_none());
    // A config that contradicts its steps takes nothing away.
    server.repository.write_file("e/config.pbtxt", "platform: \"ensemble\" nonsense: 1");
    server.logged("`e` goes on as it was loaded before");
    assert_eq!(answer(&server, "e"), Some(3.0));
    symlink("/nowhere", server.repository.models().join("m/2")).unwrap();
    server.logged("ignore version directory: ");
    server.load("m").refuses(503, "--watch loads what is saved");
    // Each of eight loads may warn, but not each of the looks, of which every change takes three.
    let warnings = server.log().matches("ignore model directory").count();
    assert!((1..=16).contains(&warnings), "{warnings} warnings in {}", server.log());
    server.is_well();
}

/// An ensemble with one step.
fn through(model: &str) -> Model {
    ensemble("x:FP32[1] -> y:FP32[1]", &[&format!("{model}: x=x -> y=y")])
}

#[test]
fn a_start_that_fails_waits_for_what_is_mended_and_explicit_mode_loads_only_what_is_wanted() {
    let repository = Repository::new().with("m", Model::of("nonsense")).with("other", id());
    let flags = ["--watch", "--model-control-mode=explicit", "--load-model=m"];
    let mut server = Server::launch(repository, &flags, &[]);
    server.logged("failed to load `m`");
    server.repository.write("m", &id());
    until("the mended model to answer", || answer(&server, "m") == Some(1.0));
    server.repository.write_file("other/1/weights.txt", "1");
    server.repository.write_file("m/1/weights.txt", "1");
    server.logged("`m` has changed: 1/weights.txt");
    assert_eq!(answer(&server, "other"), None);
    server.is_well();
}

#[test]
fn models_are_listed_with_their_states_and_loaded_again_by_name() {
    let repository = Repository::new().with("m", id()).with("gone", Model::of("nonsense"));
    let mut server = Server::explicit(repository);
    let refused = ask(&server, &["reload", "nobody"]);
    assert_eq!(refused.code, Some(1), "{}", refused.output);
    assert!(refused.output.contains("failed to load 'nobody'"), "{}", refused.output);
    let loaded = ask(&server, &["reload", "m"]);
    let expected = "\
+-------+---------+-------+
| Model | Version | State |
+-------+---------+-------+
| m     | 1       | READY |
+-------+---------+-------+
";
    assert_eq!((loaded.code, &*loaded.output), (Some(0), expected));
    let failed = ask(&server, &["reload", "gone"]);
    assert_eq!(failed.code, Some(1), "{}", failed.output);
    server.repository.write("m", &native("identity", "x:FP32[2] -> y:FP32[2]"));
    assert_eq!(ask(&server, &["reload", "m"]).code, Some(0));
    let answer = server.infer("m", &floats(&[("x", &[1.0, 2.0])]));
    assert_eq!(answer.numbers("y"), [1.0, 2.0]);
    let all = ask(&server, &["models"]);
    assert_eq!(all.code, Some(0), "{}", all.output);
    assert!(all.output.contains("| m     | 1       | READY"), "{}", all.output);
    server.repository.write("gone", &id());
    assert_eq!(ask(&server, &["reload", "gone", "m"]).code, Some(0));
    let one = ask(&server, &["models", "nobody"]);
    assert_eq!(one.output.trim(), "there is no model `nobody` (all: `troupe models`)");
    server.is_well();
}

#[test]
fn workers_carry_the_names_of_their_instances() {
    let repository = Repository::new().with("shout", constant());
    repository.write_file("shout/1/helper.py", "NUMBER = 1\n");
    let server = Server::start(repository);
    let titles = || -> Vec<(String, String)> {
        let of = |pid: u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        let title = |pid| Some((of(pid, "cmdline")?, of(pid, "comm")?));
        process::descendants(server.pid).into_iter().filter_map(title).collect()
    };
    eventually("a worker with the name of its instance", || {
        let is_named = |it: &(String, String)| {
            it.0.trim_end_matches('\0') == "troupe: shout_0" && it.1.trim() == "shout_0"
        };
        titles().iter().any(is_named).then_some(())
    });
    let is_parent = |it: &(String, String)| it.0.trim_end_matches('\0') == "troupe: fork server";
    assert!(titles().iter().any(is_parent), "{:?}", titles());
}

#[test]
fn models_and_ensembles_that_fit_only_together_are_replaced_once_all_are_saved() {
    let step = |types: &str| {
        python(
            types,
            "class TritonPythonModel:\n    def execute(self, requests):\n        return []",
        )
    };
    let chain = || ensemble("x:FP32[1] -> y:FP32[1]", &["a: x=x -> y=t", "b: x=t -> y=y"]);
    let (old, new) = ("x:FP32[1] -> y:FP32[1]", "x:FP32[1] -> y:FP32[2]");
    let repository = Repository::new().with("a", step(old)).with("b", step(old));
    let mut server = Server::with(repository.with("e", chain()), &["--watch"]);
    server.repository.write("a", &step(new));
    server.logged("`a` goes on as it was loaded before");
    assert!(
        server.log().contains("ensemble 'e', which serves, would not work"),
        "{}",
        server.log()
    );
    // This one alone would not fit either.
    server.repository.write("b", &step("x:FP32[2] -> y:FP32[1]"));
    until("all to be replaced", || server.state("a") == "READY");
    assert_eq!((&*server.state("b"), &*server.state("e")), ("READY", "READY"));
    let dims =
        |server: &Server, model: &str| server.http.get(&format!("/v2/models/{model}")).ok().json();
    assert_eq!(dims(&server, "a")["outputs"][0]["shape"], json!([2]));
    assert_eq!(dims(&server, "b")["inputs"][0]["shape"], json!([2]));
    // Nor is anything left of what is taken away, and then it forbids nothing.
    server.repository.write("b", &step(old));
    until("what does not fit to be refused", || server.state("b").starts_with("READY: "));
    server.repository.remove("e");
    until("the last one to be replaced", || server.state("b") == "READY");
    assert_eq!(dims(&server, "b")["inputs"][0]["shape"], json!([1]));
    let index = server.http.post("/v2/repository/index", "").json();
    let names = index.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["a", "b"]);
}
