//! Reloads: models are swapped whole or not at all, also under load.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{
    Model, Repository, Server, at_once, ensemble,
    http::floats,
    models::{delay, execute},
    native, process, python, until,
};

use crate::life::repository::{CHAIN, FLOATS, explicit, id, one};

/// Answers with this number, whatever it is sent.
fn constant(number: u32) -> Model {
    execute(
        FLOATS,
        &format!(
            "
            y = pb_utils.Tensor('y', np.array([{number}], np.float32))
            return [pb_utils.InferenceResponse([y]) for _ in requests]"
        ),
    )
}

#[test]
fn a_changed_model_is_swapped_and_a_failed_one_is_not() {
    let mut server = explicit(Repository::of([("m", constant(1))]), &["m"]);
    let answer = |server: &Server| server.infer("m", &one()).numbers("y")[0];
    assert_eq!(answer(&server), 1.0);
    server.repository.write("m", &constant(2));
    assert_eq!(answer(&server), 1.0, "nobody asked for a reload");
    server.load("m").ok();
    assert_eq!(answer(&server), 2.0);
    assert_eq!(server.stats("m")["inference_count"], 1, "a new model counts anew");
    for broken in [
        python(FLOATS, "raise ValueError('broken')\n"),
        Model::of("max_batch_size: -1"),
        Model::of("nonsense"),
    ] {
        server.repository.write("m", &broken);
        let failed = server.load("m");
        assert!(matches!(failed.status, 400 | 500), "{}", failed.text());
        failed.error();
        assert_eq!(answer(&server), 2.0);
        assert!(server.state("m").starts_with("READY"), "{}", server.state("m"));
    }
    server.repository.write("m", &constant(3).versions(&["1", "2"]));
    server.load("m").ok();
    assert_eq!(answer(&server), 3.0);
    assert_eq!(server.infer("m", &one()).ok().json()["model_version"], "2");
    server.repository.remove("m");
    server.load("m").refuses(500, "failed to load 'm', failed to poll from model repository");
    assert_eq!(answer(&server), 3.0);
    server.is_well();
}

#[test]
fn requests_never_see_a_model_half_swapped() {
    let mut server = explicit(
        Repository::of([("m", constant(1))]).with("e", ensemble(CHAIN, &["m: x=A -> y=Z"])),
        &["e"],
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    let http = server.http;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0.0;
                while !done.load(order) {
                    let now = http.infer("e", floats(&[("A", &[1.0])])).numbers("Z")[0];
                    assert!(last <= now, "{now} after {last}");
                    last = now;
                }
            });
        }
        for number in 2..6 {
            server.repository.write("m", &constant(number));
            server.load("m").ok();
        }
        done.store(true, order);
    });
    assert_eq!(server.infer("e", &floats(&[("A", &[1.0])])).numbers("Z"), [5.0]);
}

#[test]
fn a_step_that_its_ensemble_could_not_run_is_not_loaded() {
    let repository = Repository::of([("a", native("identity", "x:FP32[4] -> y:FP32[4]"))])
        .with("e", ensemble("A:FP32[4] -> Z:FP32[4]", &["a: x=A -> y=Z"]));
    let mut server = explicit(repository, &["e"]);
    server.repository.write("a", &native("identity", "x:FP32[5] -> y:FP32[5]"));
    let text = "in ensemble e, ensemble tensor A: inconsistent shape: [4] is inferred from model e \
                while [5] is inferred from model a";
    let refused = server.load("a");
    refused.refuses(400, text);
    refused.refuses(400, "What was loaded before serves on");
    let told = "READY: the last load failed, what was loaded before serves on: ensemble 'e'";
    assert!(server.state("a").starts_with(told), "{}", server.state("a"));
    assert_eq!(server.state("e"), "READY");
    assert_eq!(server.infer("e", &floats(&[("A", &[1.0; 4])])).numbers("Z"), [1.0; 4]);
    assert_eq!(server.metric("troupe_model_reload_failed", &["model=\"a\""]), Some(1.0));
    server.repository.write("a", &native("identity", "x:FP32[-1] -> y:FP32[-1]"));
    server.load("a").ok();
    assert_eq!(server.state("e"), "READY");
    assert_eq!(server.infer("e", &floats(&[("A", &[2.0; 4])])).numbers("Z"), [2.0; 4]);
}

#[test]
fn an_ensemble_whose_steps_are_not_loaded_again_is_not_loaded_either() {
    let repository = Repository::of([("a", native("identity", "x:FP32[4] -> y:FP32[4]"))])
        .with("e", ensemble("A:FP32[4] -> Z:FP32[4]", &["a: x=A -> y=Z"]))
        .with("over", ensemble("A:FP32[4] -> Z:FP32[4]", &["e: A=A -> Z=Z"]));
    let mut server = explicit(repository, &["over"]);
    for broken in [native("identity", "x:FP32[5] -> y:FP32[5]"), Model::of("max_batch_size: -1")] {
        server.repository.write("a", &broken);
        for name in ["e", "over"] {
            let text =
                format!("load failed for model '{name}': 'a', which it runs, was not loaded: ");
            server.load(name).refuses(400, &text);
            assert_eq!(server.infer(name, &floats(&[("A", &[1.0; 4])])).numbers("Z"), [1.0; 4]);
        }
    }
    server.repository.write("a", &native("identity", "x:FP32[-1] -> y:FP32[-1]"));
    server.load("over").ok();
}

#[test]
fn workers_that_die_come_back_with_what_was_loaded_and_not_with_what_was_saved_since() {
    let repository = Repository::of([("m", constant(1).with("instance_group { count: 2 }"))]);
    let mut server = explicit(repository, &["m"]);
    let answer = |server: &Server| {
        let answer = server.infer("m", &one());
        (answer.status == 200).then(|| answer.numbers("y")[0])
    };
    server.repository.write("m", &constant(2));
    for pid in process::descendants(server.pid) {
        process::signal(pid, Signal::KILL);
    }
    until("another worker to answer", || answer(&server).is_some());
    for _ in 0..8 {
        assert_eq!(answer(&server).unwrap_or(1.0), 1.0);
    }
    server.load("m").ok();
    assert_eq!(answer(&server), Some(2.0));
}

#[test]
fn a_config_given_with_the_load_counts_for_this_load_only() {
    let server = explicit(Repository::of([("m", id())]), &["m"]);
    let config = server.http.get("/v2/models/m/config").ok().json();
    let mut other = config.clone();
    other["max_batch_size"] = json!(4);
    other["input"][0]["dims"] = json!([1]);
    other["output"][0]["dims"] = json!([1]);
    let body = json!({"parameters": {"config": other.to_string()}});
    server.http.post("/v2/repository/models/m/load", &body).ok();
    let now = server.http.get("/v2/models/m/config").ok().json();
    assert_eq!((&now["max_batch_size"], &now["input"][0]["dims"]), (&json!(4), &json!([1])));
    let body = json!({"parameters": {"config": "{\"max_batch_size\": -4}"}});
    let answer = server.http.post("/v2/repository/models/m/load", &body);
    assert!(matches!(answer.status, 400 | 500), "{}", answer.text());
    assert_eq!(server.http.get("/v2/models/m/config").ok().json()["max_batch_size"], 4);
    server.load("m").ok();
    assert_eq!(server.http.get("/v2/models/m/config").ok().json()["max_batch_size"], 0);
}

#[test]
fn files_given_with_the_load_replace_those_on_disk_and_stay_inside() {
    let server = explicit(Repository::of([("m", constant(1))]), &["m"]);
    let config = json!({"backend": "python", "input": [{"name": "x", "data_type": "TYPE_FP32",
                        "dims": [-1]}], "output": [{"name": "y", "data_type": "TYPE_FP32",
                        "dims": [-1]}]})
    .to_string();
    let base64 = |text: &str| {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(text)
    };
    let source = base64(constant(7).source.as_deref().unwrap());
    let body = json!({"parameters": {"config": config, "file:1/model.py": source}});
    server.http.post("/v2/repository/models/m/load", &body).ok();
    assert_eq!(server.infer("m", &one()).numbers("y"), [7.0]);
    for path in ["../../escaped", "/tmp/escaped", "1/../../../escaped", "..", ""] {
        let body = json!({"parameters": {"config": config, (format!("file:{path}")): source}});
        let answer = server.http.post("/v2/repository/models/m/load", &body);
        assert!(matches!(answer.status, 400 | 500), "{path}: {}", answer.text());
        answer.error();
        assert_eq!(server.infer("m", &one()).numbers("y"), [7.0]);
    }
    assert!(!server.repository.beside("escaped").exists());
    assert!(!server.repository.models().join("escaped").exists());
}

#[test]
fn loads_and_unloads_at_the_same_time_end_in_order() {
    let repository = Repository::of([("a", delay(1, FLOATS)), ("b", id())])
        .with("e", ensemble(CHAIN, &["a: x=A -> y=k", "b: x=k -> y=Z"]));
    let server = explicit(repository, &["e"]);
    at_once(8, |caller| {
        for turn in 0..6 {
            let model = ["a", "b", "e"][(caller + turn) % 3];
            let answer = if caller % 2 == 0 { server.unload(model) } else { server.load(model) };
            assert!(matches!(answer.status, 200 | 400), "{}", answer.text());
            let answer = server.infer("e", &floats(&[("A", &[1.0])]));
            assert!(matches!(answer.status, 200 | 400 | 404 | 503), "{}", answer.text());
        }
    });
    for model in ["a", "b", "e"] {
        server.load(model).ok();
    }
    assert_eq!(server.infer("e", &floats(&[("A", &[1.0])])).numbers("Z"), [1.0]);
    server.is_well();
}

#[test]
fn a_config_that_goes_while_models_load_is_no_harm() {
    let server = explicit(Repository::of([("m", id()), ("good", id())]), &["good"]);
    let flips = std::sync::atomic::AtomicBool::new(true);
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while flips.load(order) {
                server.repository.remove("m/config.pbtxt");
                server.repository.write_file("m/config.pbtxt", id().config);
            }
        });
        for _ in 0..50 {
            let answer = server.load("m");
            assert!(matches!(answer.status, 200 | 400 | 500), "{}", answer.text());
            server.unload("m").ok();
        }
        flips.store(false, order);
    });
    server.load("m").ok();
    server.infer("m", &one()).ok();
    server.infer("good", &one()).ok();
    server.is_well();
}
