//! Warm-up of ensembles, on reloads, with files that come with the load, and before any load.

use std::thread;

use serde_json::json;

use crate::{
    life::warmup::{FLOATS, counts_nothing, explicit, fails, id, noted, noting, sample, zeros},
    support::{Model, Repository, Server, ensemble, gate::Gate, http::floats, native, troupe},
};

const CHAIN: &str = "A:FP32[2] -> Z:FP32[2]";

const STEPS: [&str; 2] = ["first: x=A -> y=m", "second: x=m -> y=Z"];

const ONE: &str = "name: \"w\" batch_size: 1";

fn for_chain(fields: &str, data: &str) -> String {
    sample(fields, &[("A:FP32[2]", data)])
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn an_ensemble_runs_all_its_steps_at_each_batch_size_and_counts_nowhere() {
    let repository = Repository::new();
    repository.write_file("e/warmup/raw", [0u8; 8]);
    let step = |name: &str| {
        let model = noting(&repository, FLOATS).batch(8);
        (name.to_owned(), if name == "second" { model.with("dynamic_batching {}") } else { model })
    };
    let steps = ["first", "second"].map(step);
    let e = ensemble(CHAIN, &STEPS)
        .batch(4)
        .with(for_chain("name: \"a\" batch_size: 1 count: 2", "zero_data: true"))
        .with(for_chain("name: \"b\" batch_size: 4", "input_data_file: \"raw\""));
    let outer = ensemble(CHAIN, &["e: A=A -> Z=Z"]).batch(2);
    let outer = outer.with(for_chain("name: \"c\" batch_size: 2", "zero_data: true"));
    let repository = steps.into_iter().fold(repository, |it, (name, model)| it.with(name, model));
    let server = Server::start(repository.with("e", e).with("outer", outer));
    for instance in ["first_0", "second_0"] {
        let shapes: Vec<_> = noted(&server.repository, instance)
            .iter()
            .map(|it| (it.as_array().unwrap().len(), it[0][0].clone()))
            .collect();
        let rows = |rows: i64| (1, json!([rows, 2]));
        assert_eq!(shapes, [rows(1), rows(1), rows(4), rows(2)], "{instance}");
    }
    for model in ["first", "second", "e", "outer"] {
        counts_nothing(&server, model);
    }
    let of_steps = |name: &str| {
        let name = format!("troupe_ensemble_step_{name}");
        [0, 1].map(|it| server.metric(&name, &["ensemble=\"e\"", &format!("step=\"{it}\"")]))
    };
    for name in ["in_flight", "failures_total", "duration_seconds_count"] {
        assert_eq!(of_steps(name), [Some(0.0); 2], "{name}");
    }
    let graph = server.http.get("/v2/models/e/graph").ok().json();
    let counted = |of: &str, key: &str| {
        let all = graph[of].as_array().unwrap().iter();
        all.filter_map(|it| it[key].as_u64()).sum::<u64>()
    };
    assert_eq!((counted("nodes", "requests"), counted("edges", "tensors")), (0, 0));
    let request = json!({"inputs": [{"name": "A", "datatype": "FP32", "shape": [3, 2],
                                     "data": vec![1.0; 6]}]});
    server.infer("e", &request).ok();
    assert_eq!(server.stats("first")["inference_count"], 3);
    assert_eq!(of_steps("duration_seconds_count"), [Some(1.0); 2]);
    server.is_well();
}

#[test]
fn an_ensemble_that_cannot_be_warmed_names_the_step_and_leaves_its_steps_alone() {
    let repository = Repository::of([("first", id("")), ("second", fails())])
        .with("e", ensemble(CHAIN, &STEPS).with(for_chain(ONE, "zero_data: true")))
        .with("f", ensemble(CHAIN, &STEPS).with(for_chain(ONE, "input_data_file: \"missing\"")));
    let server = explicit(repository, &["first", "second"], &[]);
    let text = "failed to run warmup sample 'w': in ensemble 'e', step 1 (model 'second' version \
                1, instance 'second_0'): Failed to process the request(s) for model instance 'second_0', message: \
                ValueError: too cold";
    server.load("e").refuses(400, text);
    let state = server.state("e");
    assert!(state.starts_with("UNAVAILABLE: ") && state.contains(text), "{state}");
    let error = server.load("f").error();
    assert!(error.contains("warmup/missing': No such file"), "{error}");
    for step in ["first", "second"] {
        assert_eq!(server.state(step), "READY");
        counts_nothing(&server, step);
    }
    server.infer("first", &floats(&[("x", &[1.0, 2.0])])).ok();
    // The step is mended, and so the ensemble comes up with it.
    let mut server = server;
    server.repository.write("second", &id(""));
    server.repository.remove("second/1/model.py");
    server.load("second").ok();
    assert_eq!(server.state("e"), "READY");
    server.infer("e", &floats(&[("A", &[1.0, 2.0])])).ok();
    // It breaks again: it is there by itself, and the way through it is not.
    server.repository.write("second", &fails());
    server.load("second").ok();
    let state = server.state("e");
    assert!(state.starts_with("UNAVAILABLE: ") && state.contains(text), "{state}");
    assert_eq!(server.state("second"), "READY");
}

#[test]
fn an_ensemble_is_ready_once_it_is_warm() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let repository = repository
        .with("first", native("identity", FLOATS))
        .with("second", gate.model("FP32[2]"))
        .with("e", ensemble(CHAIN, &STEPS).with(for_chain(ONE, "random_data: true")));
    let server = explicit(repository, &["second"], &[]);
    thread::scope(|scope| {
        let load = scope.spawn(|| server.load("e"));
        gate.is_reached();
        assert_eq!((server.state("e"), server.state("second")), ("LOADING".into(), "READY".into()));
        gate.let_through(1);
        load.join().unwrap().ok();
    });
    assert_eq!(server.state("e"), "READY");
    server.is_well();
}

#[test]
fn a_reload_that_cannot_be_warmed_leaves_what_serves() {
    let mut server = explicit(Repository::of([("m", id(&zeros(ONE)))]), &["m"], &[]);
    let works = |server: &Server| {
        assert!(server.state("m").starts_with("READY"));
        assert_eq!(server.infer("m", &floats(&[("x", &[3.0, 4.0])])).numbers("y"), [3.0, 4.0]);
    };
    works(&server);
    let python = fails().with(zeros(ONE));
    let short = id(&sample(ONE, &[("x:FP32[2]", "input_data_file: \"short\"")]));
    for (model, text) in [
        (python, "failed to run warmup sample 'w': Failed to process the request(s)"),
        (short, "No such file or directory"),
    ] {
        server.repository.write("m", &model);
        server.load("m").refuses(400, text);
        works(&server);
    }
    server.repository.write_file("m/warmup/short", [0; 8]);
    server.load("m").ok();
    works(&server);
    assert_eq!(server.stats("m")["inference_count"], 1, "a new model counts anew");
}

#[test]
fn a_changed_warm_up_file_is_a_change_and_an_unchanged_one_is_not() {
    let repository = Repository::new();
    let model =
        noting(&repository, FLOATS).with(sample(ONE, &[("x:FP32[2]", "input_data_file: \"raw\"")]));
    let bytes = |it: f32| [it.to_le_bytes(), it.to_le_bytes()].concat();
    repository.write_file("m/warmup/raw", bytes(1.0));
    let server = explicit(repository.with("m", model), &["m"], &[]);
    let values = |server: &Server| -> Vec<f64> {
        let notes = noted(&server.repository, "m_0");
        notes.iter().map(|it| it[0][1][0].as_f64().unwrap()).collect()
    };
    server.load("m").ok();
    assert_eq!(values(&server), [1.0]);
    // More than is needed: the first bytes count, and the log says so.
    server.repository.write_file("m/warmup/raw", [bytes(2.0), bytes(3.0)].concat());
    server.load("m").ok();
    assert_eq!(values(&server), [1.0, 2.0]);
    server.logged("has 16 bytes, of which warmup uses the first 8");
}

#[test]
fn files_that_come_with_the_load_warm_it_up() {
    let repository = Repository::new();
    let model = noting(&repository, FLOATS);
    let source = base64(model.source.as_deref().unwrap());
    let server = explicit(repository.with("m", model), &[], &[]);
    let tensor = |name: &str| json!([{"name": name, "data_type": "TYPE_FP32", "dims": [2]}]);
    let input = json!({"data_type": "TYPE_FP32", "dims": ["2"], "input_data_file": "raw"});
    let config = json!({"backend": "python", "input": tensor("x"), "output": tensor("y"),
        "model_warmup": [{"name": "w", "batch_size": 1, "inputs": {"x": input}}]})
    .to_string();
    let mut parameters = json!({"config": config, "file:1/model.py": source});
    let load = |parameters: &serde_json::Value| {
        let body = json!({"parameters": parameters});
        server.http.post("/v2/repository/models/m/load", &body)
    };
    let error = load(&parameters).error();
    assert!(error.contains("warmup/raw': No such file or directory"), "{error}");
    let raw = [4.0f32.to_le_bytes(), 5.0f32.to_le_bytes()].concat();
    parameters["file:warmup/raw"] = base64(raw).into();
    load(&parameters).ok();
    assert_eq!(noted(&server.repository, "m_0"), [json!([[[2], [4.0, 5.0]]])]);
}

#[test]
fn what_is_wrong_with_a_warm_up_is_said_without_loading() {
    let fails = fails();
    let completes = "\n    @staticmethod\n    def auto_complete_config(it):\n        return it\n";
    // Its inputs are not known before it is loaded.
    let open = Model {
        config: "backend: \"python\"\n".into(),
        source: fails.source.clone().map(|it| it + completes),
        ..fails
    };
    let repository = Repository::of([("first", id("")), ("second", id(""))])
        .with("good", id(&zeros(ONE)))
        .with("lost", id(&sample(ONE, &[("x:FP32[2]", "input_data_file: \"gone\"")])))
        .with("misnamed", id(&sample(ONE, &[("q:FP32[2]", "zero_data: true")])))
        .with("unsized", id(&sample(ONE, &[("x:FP32[-1]", "zero_data: true")])))
        .with("e", ensemble(CHAIN, &STEPS).with(for_chain("batch_size: 2", "zero_data: true")))
        .with("open", open.with(zeros(ONE)));
    let ended = troupe(&["check", repository.models().to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    for (place, text) in [
        ("lost/config.pbtxt:", "lost/warmup/gone': No such file or directory"),
        ("misnamed/config.pbtxt:", "unexpected inference input 'q' for model 'misnamed'"),
        ("unsized/config.pbtxt:", "variable-size dimensions are specified for input 'x'"),
        ("e/config.pbtxt:", "batch size 2 for 'e', max allowed is 0"),
    ] {
        let found = ended.output.lines().any(|it| it.contains(place) && it.contains(text));
        assert!(found, "no `{text}` at {place} in\n{}", ended.output);
    }
    for fine in ["good/", "open/", "first/", "second/"] {
        let path = format!("{fine}config.pbtxt");
        let mut problems = ended.output.lines().filter(|it| !it.starts_with("warning: "));
        assert!(!problems.any(|it| it.contains(&path)), "{path} in\n{}", ended.output);
    }
}
