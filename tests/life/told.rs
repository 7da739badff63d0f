//! What a server tells of models that do not load, and of its own end.

use rustix::process::Signal;

use crate::support::{Repository, Server, ensemble, http::floats, models::python, native, until};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// A Python model whose file is wrong in one line.
fn broken() -> crate::support::Model {
    python(FLOATS, "class TritonPythonModel:\n    def execute(self, requests)\n        pass\n")
}

fn fine() -> crate::support::Model {
    python(
        FLOATS,
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n",
    )
}

#[test]
fn the_last_line_of_a_failed_start_names_the_culprit_and_nothing_healthy() {
    let repository = Repository::new()
        .with("fine", fine())
        .with("broken", broken())
        .with("e", ensemble("A:FP32[-1] -> Z:FP32[-1]", &["broken: x=A -> y=Z"]));
    let ended = Server::fails(&repository, &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    let last = ended.output.trim_end().lines().last().unwrap();
    for told in [
        "stopped because 'broken' did not load: ",
        "SyntaxError: expected ':' (",
        "broken/1/model.py, line 10): def execute(self, requests)",
        "; and 1 more, see above (--exit-on-error=false serves what does load)",
    ] {
        assert!(last.contains(told), "no {told} in\n{last}");
    }
    assert!(!ended.output.contains("is not healthy"), "{}", ended.output);
    assert!(!ended.output.contains("At:"), "{}", ended.output);
}

#[test]
fn a_clean_stop_is_quiet_and_ends_with_stopped() {
    let server = Server::start(Repository::of([("fine", fine())]));
    server.signal(Signal::TERM);
    assert!(server.end().success());
    // What it wrote last is read a moment after its end.
    server.logged("\"stopped\"");
    let log = server.log();
    assert!(log.trim_end().ends_with("\"stopped\""), "{log}");
    assert!(!log.contains("is not healthy") && !log.lines().any(|it| it.starts_with('E')), "{log}");
}

#[test]
fn a_reload_that_failed_is_seen_in_index_page_and_metrics_until_one_succeeds() {
    let server = Server::explicit(Repository::of([("m", fine())]));
    server.load("m").ok();
    let failed = || server.metric("troupe_model_reload_failed", &["model=\"m\""]);
    assert_eq!((server.state("m").as_str(), failed()), ("READY", Some(0.0)));
    server.repository.write_file("m/1/model.py", "def f(:\n");
    server.load("m").refuses(400, "SyntaxError");
    let index = server.http.post("/v2/repository/index", "").json();
    let told = "the last load failed, what was loaded before serves on: ";
    assert_eq!(index[0]["state"], "READY", "{index}");
    assert!(index[0]["reason"].as_str().unwrap().starts_with(told), "{index}");
    assert_eq!(failed(), Some(1.0));
    let page = server.metrics.get("/").text();
    assert!(page.contains(told) && !page.contains('\u{fffd}'), "{page}");
    assert!(server.metrics.get("/model/m").text().contains(told), "the page of the model, too");
    assert_eq!(server.http.get("/v2/health/ready").status, 200);
    server.repository.write_file("m/1/model.py", fine().source.unwrap());
    server.load("m").ok();
    assert_eq!((server.state("m").as_str(), failed()), ("READY", Some(0.0)));
}

#[test]
fn a_model_whose_workers_die_at_every_start_says_so_and_is_loaded_for_real() {
    let repository = Repository::new();
    let switch = repository.beside("switch");
    let source = format!(
        "
        class TritonPythonModel:
            def initialize(self, args):
                if open({switch:?}).read() == 'off':
                    os._exit(3)

            def execute(self, requests):
                os._exit(4)"
    );
    let set = |to: &str| std::fs::write(&switch, to).unwrap();
    set("on");
    let server = Server::explicit(repository.with("m", python(FLOATS, &source)));
    server.load("m").ok();
    let entry = || server.http.post("/v2/repository/index", "").json()[0].clone();
    assert_eq!(entry().get("reason"), None);
    set("off");
    server.infer("m", &floats(&[("x", &[1.0])])).refuses(503, "it exited with status 4");
    until("the index to tell why", || {
        let entry = entry();
        let reason = entry["reason"].as_str().unwrap_or_default();
        entry["state"] == "READY"
            && reason.starts_with("no instance is up: ")
            && reason.contains("it exited with status 3; ")
            && reason.contains("Next attempt within ")
    });
    let models = server.http.get("/v2/models").json();
    let told = models["models"][0]["reason"].as_str().unwrap();
    assert!(told.starts_with("no instance is up: "), "{models}");
    server.load("m").refuses(400, "it exited with status 3");
    let reason = entry()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("\nthe last load failed: version 1 is at"), "{reason}");
    set("on");
    server.load("m").ok();
    assert_eq!((server.state("m").as_str(), entry().get("reason")), ("READY", None));
}

#[test]
fn clients_of_a_model_that_did_not_load_are_told_why() {
    let repository = Repository::new()
        .with("step", broken())
        .with("id", native("identity", FLOATS))
        .with("e", ensemble("A:FP32[-1] -> Z:FP32[-1]", &["step: x=A -> y=Z"]));
    let server = Server::lenient(repository);
    let ask = |model: &str| server.infer(model, &floats(&[("A", &[1.0])]));
    ask("e").refuses(
        404,
        "Request for unknown model: 'e' has no available versions: ensemble 'e' depends on",
    );
    ask("e").refuses(404, "SyntaxError: expected ':'");
    ask("step").refuses(404, "has no available versions: ");
    // The flag that allows what is refused.
    server.load("id").refuses(503, "start the server with --model-control-mode=explicit");
}
