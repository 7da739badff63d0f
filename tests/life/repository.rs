//! The repository: versions, control modes, loads that fail, ensembles and what they hold.

use serde_json::{Value, json};

use crate::support::{Model, Repository, Server, ensemble, eventually, http::floats, native};

pub(crate) const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

pub(crate) const CHAIN: &str = "A:FP32[-1] -> Z:FP32[-1]";

pub(crate) fn id() -> Model {
    native("identity", FLOATS)
}

pub(crate) fn one() -> Value {
    floats(&[("x", &[1.0])])
}

pub(crate) fn explicit(repository: Repository, models: &[&str]) -> Server {
    let flags: Vec<String> = models.iter().map(|it| format!("--load-model={it}")).collect();
    let flags = ["--model-control-mode=explicit"].into_iter().chain(flags.iter().map(|it| &**it));
    Server::with(repository, &flags.collect::<Vec<_>>())
}

#[test]
fn version_policies_choose_among_numbered_folders() {
    let folders = &["1", "2", "10", "007", "old", "-3", "0"];
    let with = |policy: &str| id().versions(folders).with(policy);
    let server = Server::start(
        Repository::new()
            .with("latest", with(""))
            .with("latest2", with("version_policy { latest { num_versions: 2 } }"))
            .with("all", with("version_policy { all {} }"))
            .with("specific", with("version_policy { specific { versions: [1, 2] } }")),
    );
    for (model, expected) in [
        ("latest", vec!["10"]),
        ("latest2", vec!["2", "10"]),
        ("all", vec!["1", "2", "10"]),
        ("specific", vec!["1", "2"]),
    ] {
        let body = server.http.get(&format!("/v2/models/{model}")).ok().json();
        assert_eq!(body["versions"], json!(expected), "{model}");
        let newest = server.infer(model, &one()).ok().json()["model_version"].clone();
        assert_eq!(newest, *expected.last().unwrap(), "{model}");
    }
    for (path, expected) in [("all/versions/2", "2"), ("specific/versions/1", "1")] {
        let body = server.infer(path, &one()).ok().json();
        assert_eq!(body["model_version"], expected);
    }
    server.infer("latest/versions/2", &one()).refuses(404, "version 2");
    assert!(server.log().contains(
        "ignore version directory '007' which contains leading zeros in its directory name"
    ));
}

#[test]
fn versions_count_apart_and_ensembles_may_pin_one() {
    let both = id().versions(&["1", "2"]).with("version_policy { all {} }");
    let server = Server::start(
        Repository::of([("m", both)])
            .with("pinned", ensemble(CHAIN, &["m@1: x=A -> y=k", "m: x=k -> y=Z"])),
    );
    server.infer("pinned", &floats(&[("A", &[1.0])])).ok();
    server.infer("pinned", &floats(&[("A", &[1.0])])).ok();
    server.infer("m/versions/1", &one()).ok();
    for (version, count) in [(1, 3), (2, 2)] {
        let stats = server.http.get(&format!("/v2/models/m/versions/{version}/stats"));
        assert_eq!(stats.ok().json()["model_stats"][0]["inference_count"], count);
    }
}

#[test]
fn a_repository_with_nothing_in_it_is_ready() {
    let server = Server::start(Repository::new());
    assert_eq!(server.http.post("/v2/repository/index", "").ok().json(), json!([]));
    assert_eq!(server.http.get("/v2/models/stats").ok().json()["model_stats"], json!([]));
}

#[test]
fn the_control_mode_none_changes_nothing() {
    let server = Server::start(Repository::of([("m", id())]));
    for answer in [server.load("m"), server.unload("m")] {
        let text = "explicit model load / unload is not allowed if polling is enabled";
        answer.refuses(503, text);
    }
    assert_eq!(server.state("m"), "READY");
}

#[test]
fn models_are_loaded_and_unloaded_on_demand() {
    let server = explicit(Repository::of([("a", id()), ("b", id())]), &["a"]);
    assert_eq!(server.state("a"), "READY");
    server.infer("b", &one()).refuses(404, "Request for unknown model: 'b'");
    let index = server.http.post("/v2/repository/index", "").ok().json();
    assert_eq!(index, json!([{"name": "a", "version": "1", "state": "READY"}, {"name": "b"}]));
    let ready = server.http.post("/v2/repository/index", "{\"ready\": true}").ok().json();
    assert_eq!(ready, json!([{"name": "a", "version": "1", "state": "READY"}]));
    let answer = server.load("b");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    server.infer("b", &one()).ok();
    server.load("b").ok();
    assert_eq!(server.stats("b")["inference_count"], 1, "an unchanged model was loaded again");
    server.unload("b").ok();
    server.unload("b").ok();
    assert_eq!(server.state("b"), "UNAVAILABLE: unloaded");
    server.infer("b", &one()).refuses(404, "Request for unknown model: 'b'");
    server.ready();
    server.unload("never_heard_of").ok();
    server
        .load("never_heard_of")
        .refuses(500, "failed to load 'never_heard_of', failed to poll from model repository");
    server.http.post("/v2/repository/models/%20/load", "").error();
    server.load("b").ok();
    assert_eq!(server.stats("b")["inference_count"], 0);
}

#[test]
fn all_models_can_be_asked_for_at_start() {
    let server = explicit(Repository::of([("a", id()), ("b", id())]), &["*"]);
    assert_eq!((server.state("a"), server.state("b")), ("READY".to_owned(), "READY".to_owned()));
}

#[test]
fn an_ensemble_brings_its_steps_along() {
    let steps = ["inner: A=A -> Z=k", "b: x=k -> y=Z"];
    let repository = Repository::of([("a", id()), ("b", id())])
        .with("inner", ensemble(CHAIN, &["a: x=A -> y=Z"]))
        .with("outer", ensemble(CHAIN, &steps));
    let server = explicit(repository, &["outer"]);
    for model in ["a", "b", "inner", "outer"] {
        assert_eq!(server.state(model), "READY", "{model}");
    }
    server.unload("outer").ok();
    for (model, state) in [("outer", "UNAVAILABLE: unloaded"), ("inner", "READY"), ("a", "READY")] {
        assert_eq!(server.state(model), state, "{model}");
    }
}

#[test]
fn without_a_step_an_ensemble_is_down_and_with_it_up_again() {
    let repository = Repository::of([("a", id()), ("b", id())])
        .with("inner", ensemble(CHAIN, &["a: x=A -> y=Z"]))
        .with("outer", ensemble(CHAIN, &["inner: A=A -> Z=k", "b: x=k -> y=Z"]));
    let server = explicit(repository, &["outer"]);
    server.unload("a").ok();
    assert_eq!(server.state("a"), "UNAVAILABLE: unloaded");
    let state = server.state("inner");
    assert!(
        state.starts_with(
            "UNAVAILABLE: ensemble 'inner' depends on 'a' which has no loaded version"
        ),
        "{state}"
    );
    assert!(server.state("outer").starts_with("UNAVAILABLE: "), "{}", server.state("outer"));
    assert_eq!(server.state("b"), "READY");
    let answer = server.infer("outer", &floats(&[("A", &[1.0])]));
    assert!(matches!(answer.status, 400 | 404 | 503), "{}", answer.text());
    server.load("a").ok();
    for model in ["a", "inner", "outer"] {
        assert_eq!(server.state(model), "READY", "{model}");
    }
    assert_eq!(server.infer("outer", &floats(&[("A", &[1.0])])).numbers("Z"), [1.0]);
}

#[test]
fn dependents_are_unloaded_when_only_the_ensemble_wanted_them() {
    let repository = Repository::of([("a", id()), ("b", id()), ("shared", id())])
        .with("e", ensemble(CHAIN, &["a: x=A -> y=k", "shared: x=k -> y=l", "b: x=l -> y=Z"]))
        .with("f", ensemble(CHAIN, &["shared: x=A -> y=Z"]));
    let server = explicit(repository, &["e", "f", "b"]);
    let body = "{\"parameters\": {\"unload_dependents\": true}}";
    server.http.post("/v2/repository/models/e/unload", body).ok();
    for (model, state) in [
        ("e", "UNAVAILABLE: unloaded"),
        ("a", "UNAVAILABLE: unloaded"),
        ("shared", "READY"),
        ("b", "READY"),
        ("f", "READY"),
    ] {
        assert_eq!(server.state(model), state, "{model}");
    }
}

#[test]
fn several_repositories_are_one_and_doubles_are_unusable() {
    let other = Repository::of([("only_there", id()), ("twice", id())]);
    let repository = Repository::of([("only_here", id()), ("twice", id())]);
    let flag = format!("--model-repository={}", other.models().display());
    let server = Server::with(repository, &[&flag, "--exit-on-error=false"]);
    assert_eq!(server.state("only_here"), "READY");
    assert_eq!(server.state("only_there"), "READY");
    assert_eq!(server.state("twice"), "UNAVAILABLE: model appears in two or more repositories");
    server.infer("only_there", &one()).ok();
}

#[test]
fn models_that_do_not_load_do_not_stop_the_others_when_that_is_wanted() {
    let repository = Repository::of([("good", id()), ("bad", native("nonsense", FLOATS))])
        .with("empty", id().versions(&[]))
        .with("unknown", Model::of("backend: \"nonsense\""))
        .with("e", ensemble(CHAIN, &["bad: x=A -> y=Z"]));
    let server = Server::lenient(repository);
    server.infer("good", &one()).ok();
    for (model, reason) in [
        ("bad", "names the native op 'nonsense'"),
        ("empty", "Not loaded: No model version was found"),
        ("unknown", "nonsense"),
        ("e", "ensemble 'e' depends on 'bad' which has no loaded version"),
    ] {
        let row = eventually(&format!("a row for {model}"), || {
            let is_its = |it: &&str| it.starts_with('|') && it.contains(&format!(" {model} "));
            server.log().lines().find(is_its).map(str::to_owned)
        });
        assert!(row.contains(reason), "{row}");
    }
    assert_eq!(server.http.get("/v2/health/live").status, 200);
    assert_eq!(server.http.get("/v2/health/ready").status, 400);
    assert_eq!(server.http.get("/v2/models/good/ready").status, 200);
}

#[test]
fn a_failing_model_does_not_unready_a_server_that_is_not_strict() {
    let repository = Repository::of([("good", id()), ("bad", native("nonsense", FLOATS))]);
    let server = Server::with(repository, &["--exit-on-error=false", "--strict-readiness=false"]);
    server.ready();
}

#[test]
fn what_is_not_built_yet_is_refused_by_name() {
    let rows = [
        ("runs_in", "runtime: 'x'", "`runtime` is not supported yet"),
        (
            "optimized",
            "optimization { graph { level: 1 } }",
            "`optimization.graph` is not supported yet",
        ),
        (
            "decoupled",
            "model_transaction_policy { decoupled: true }",
            "model 'decoupled' is decoupled, which only Python models can be",
        ),
    ];
    let models = rows.map(|(name, field, _)| (name, id().with(field)));
    let server = Server::explicit(Repository::of(models));
    for (name, _, text) in rows {
        let error = server.load(name).error();
        assert!(error.contains(text), "{error}");
    }
}
