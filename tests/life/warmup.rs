//! Warm-up: which requests run before a model is ready, on which instances, and what failures do.

use std::{fs, thread};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server,
    gate::Gate,
    http::floats,
    models::{delay, execute},
    native,
    process::{descendants, is_alive},
    python, until,
};

pub(crate) const FLOATS: &str = "x:FP32[2] -> y:FP32[2]";

/// A `model_warmup` of these fields and inputs: `("x:FP32[2]", "zero_data: true")`.
pub(crate) fn sample(fields: &str, inputs: &[(&str, &str)]) -> String {
    let input = |(tensor, data): &(&str, &str)| {
        let (name, rest) = tensor.split_once(':').unwrap();
        let (dtype, dims) = rest.split_once('[').unwrap();
        format!(
            "  inputs {{ key: \"{name}\" value {{ data_type: TYPE_{dtype} dims: [{dims} {data} }} \
             }}\n"
        )
    };
    let inputs: String = inputs.iter().map(input).collect();
    format!("model_warmup {{ {fields}\n{inputs}}}\n")
}

pub(crate) fn zeros(fields: &str) -> String {
    sample(fields, &[("x:FP32[2]", "zero_data: true")])
}

/// An identity that notes each execution: its instance, and shape and values of each request.
pub(crate) fn noting(repository: &Repository, signature: &str) -> Model {
    python(
        signature,
        &format!(
            "
            class TritonPythonModel:
                def initialize(self, args):
                    self.instance = args['model_instance_name']

                def execute(self, requests):
                    values = [
                        pb_utils.get_input_tensor_by_name(it, 'x').as_numpy() for it in requests
                    ]
                    plain = lambda it: it.decode() if isinstance(it, bytes) else it
                    seen = [
                        [list(it.shape), [plain(one) for one in it.reshape(-1).tolist()]]
                        for it in values
                    ]
                    with open('{}', 'a') as notes:
                        notes.write(json.dumps([self.instance, seen]) + '\\n')
                    return [
                        pb_utils.InferenceResponse([pb_utils.Tensor('y', it)]) for it in values
                    ]
            ",
            repository.beside("notes").display()
        ),
    )
}

/// What an instance noted: for each execution its requests.
pub(crate) fn noted(repository: &Repository, instance: &str) -> Vec<Value> {
    let notes = fs::read_to_string(repository.beside("notes")).unwrap_or_default();
    let notes = notes.lines().map(|it| serde_json::from_str::<Value>(it).unwrap());
    notes.filter(|it| it[0] == instance).map(|it| it[1].clone()).collect()
}

pub(crate) fn explicit(repository: Repository, models: &[&str], flags: &[&str]) -> Server {
    let models: Vec<String> = models.iter().map(|it| format!("--load-model={it}")).collect();
    let mut all = vec!["--model-control-mode=explicit"];
    all.extend(models.iter().map(String::as_str).chain(flags.iter().copied()));
    Server::with(repository, &all)
}

pub(crate) fn fails() -> Model {
    execute(FLOATS, "raise ValueError('too cold')")
}

pub(crate) fn counts_nothing(server: &Server, model: &str) {
    let stats = server.stats(model);
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(0), &json!(0)));
    assert_eq!(stats["last_inference"], 0);
    assert_eq!(stats["batch_stats"], json!([]), "{stats}");
    for kind in ["success", "fail", "queue", "compute_infer"] {
        assert_eq!(stats["inference_stats"][kind]["count"], 0, "{kind} of {stats}");
    }
    let labels = [&*format!("model=\"{model}\"")];
    for name in ["nv_inference_count", "nv_inference_exec_count", "nv_inference_request_success"] {
        assert_eq!(server.metric(name, &labels), Some(0.0), "{name} of {model}");
    }
}

#[test]
fn every_instance_runs_every_sample_in_order_and_counts_nothing() {
    let repository = Repository::new();
    let file: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|it| it.to_le_bytes()).collect();
    repository.write_file("m/warmup/deeper/raw", &file);
    let model = noting(&repository, FLOATS)
        .batch(4)
        .with("instance_group { count: 2 }")
        .with(zeros("name: \"alone\" batch_size: 1 count: 2"))
        .with(sample("name: \"off\"", &[("x:FP32[2]", "zero_data: true")]))
        .with(sample("name: \"many\" batch_size: 3", &[("x:FP32[2]", "random_data: true")]))
        .with(sample(
            "name: \"file\" batch_size: 2",
            &[("x:FP32[2]", "input_data_file: \"deeper/raw\"")],
        ));
    let server = Server::with(repository.with("m", model), &["--log-verbose=1"]);
    for instance in ["m_0_0", "m_0_1"] {
        let notes = noted(&server.repository, instance);
        let [first, second, many, file] = &notes[..] else { panic!("{notes:?}") };
        let row = |values: &[f64]| json!([[1, 2], values]);
        assert_eq!((first, second), (&json!([row(&[0.0; 2])]), &json!([row(&[0.0; 2])])));
        assert_eq!(many.as_array().unwrap().len(), 3, "{many}");
        for request in many.as_array().unwrap() {
            let values = request[1].as_array().unwrap();
            assert_eq!((&request[0], values.len()), (&json!([1, 2]), 2));
            assert!(values.iter().all(|it| (0.5..1.0).contains(&it.as_f64().unwrap())), "{many}");
        }
        assert_eq!(file, &json!([row(&[1.5, -2.0]), row(&[1.5, -2.0])]));
        let line = |iteration| {
            format!(
                "model 'm' instance {instance} is running warmup sample 'alone' for iteration \
                 {iteration}"
            )
        };
        server.logged(&line(1));
        server.logged(&line(2));
        assert!(!server.log().contains(&line(3)));
    }
    server.logged("warmup sample 'off' of 'm' is skipped: its batch_size is 0");
    counts_nothing(&server, "m");
    server.infer("m", &rows(1)).ok();
    assert_eq!(server.stats("m")["inference_count"], 1);
}

/// A batch for `FLOATS`.
fn rows(count: i64) -> Value {
    let data = vec![1.0f32; 2 * count as usize];
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [count, 2], "data": data}]})
}

#[test]
fn strings_are_zeros_or_come_with_their_lengths() {
    let repository = Repository::new();
    repository.write_file("m/warmup/words", b"\x02\0\0\0hi\0\0\0\0");
    let model = noting(&repository, "x:BYTES[-1] -> y:BYTES[-1]");
    let with = |size: usize, data: &str| {
        sample("name: \"w\" batch_size: 1", &[(&*format!("x:STRING[{size}]"), data)])
    };
    let model = model
        .with(with(3, "zero_data: true"))
        .with(with(1, "random_data: true"))
        .with(with(2, "input_data_file: \"words\""));
    let server = Server::start(repository.with("m", model));
    let expected = [
        json!([[[3], ["", "", ""]]]),
        json!([[[1], [""]]]),
        // No batch dimension: the model does not batch.
        json!([[[2], ["hi", ""]]]),
    ];
    assert_eq!(noted(&server.repository, "m_0"), expected);
    counts_nothing(&server, "m");
}

#[test]
fn instances_in_this_process_are_warmed_wherever_they_run() {
    let mut repository = Repository::new();
    for placement in ["shared", "own"] {
        let batch =
            sample("name: \"w\" batch_size: 8 count: 3", &[("x:FP32[2]", "random_data: true")]);
        let model = native("identity", FLOATS).batch(8).parameter("placement", placement);
        repository.write(placement, &model.with("instance_group { count: 2 }").with(batch));
        let unlike = sample(
            "name: \"unlike\" batch_size: 1",
            &[("a:FP32[2]", "zero_data: true"), ("b:FP32[3]", "zero_data: true")],
        );
        let signature = "a:FP32[-1] b:FP32[-1] -> sum:FP32[-1] difference:FP32[-1]";
        let model = native("add_sub", signature).parameter("placement", placement).with(unlike);
        repository.write(&format!("wrong_{placement}"), &model);
    }
    repository.write("slow", &delay(1, FLOATS).with(zeros("name: \"w\" batch_size: 1 count: 3")));
    let models = ["shared", "own", "slow"];
    let server = explicit(repository, &models, &["--log-verbose=1"]);
    for model in models {
        counts_nothing(&server, model);
        server.logged(&format!("model '{model}' instance {model}"));
        server.logged("is running warmup sample 'w' for iteration 3");
    }
    server.infer("shared", &rows(8)).ok();
    assert_eq!(server.stats("shared")["inference_count"], 8);
    for placement in ["shared", "own"] {
        let model = format!("wrong_{placement}");
        let text = "failed to run warmup sample 'unlike': cannot Add FP32 [2] and FP32 [3]";
        server.load(&model).refuses(400, text);
        let state = server.state(&model);
        assert!(state.starts_with("UNAVAILABLE: ") && state.contains(text), "{state}");
    }
    assert!(!server.log().contains("panicked at"));
}

#[test]
fn a_model_is_ready_once_it_is_warm_and_holds_nobody_up_until_then() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let cold = gate.model("FP32[2]").with(zeros("name: \"w\" batch_size: 1 count: 2"));
    let repository = repository.with("cold", cold).with("other", native("identity", FLOATS));
    let server = explicit(repository, &[], &["--model-load-thread-count=1"]);
    let one = floats(&[("x", &[1.0, 2.0])]);
    thread::scope(|scope| {
        let load = scope.spawn(|| server.load("cold"));
        gate.is_reached();
        assert_eq!(server.state("cold"), "LOADING");
        assert_ne!(server.http.get("/v2/models/cold/ready").status, 200);
        assert!(matches!(server.infer("cold", &one).status, 400 | 404 | 503));
        server.load("other").ok();
        assert_eq!(server.infer("other", &one).numbers("y"), [1.0, 2.0]);
        gate.let_through(1);
        gate.is_reached();
        assert_eq!(server.state("cold"), "LOADING");
        gate.let_through(1);
        load.join().unwrap().ok();
    });
    assert_eq!(server.state("cold"), "READY");
    counts_nothing(&server, "cold");
    gate.let_through(1);
    assert_eq!(server.infer("cold", &one).numbers("y"), [1.0, 2.0]);
}

#[test]
fn a_warm_up_that_hangs_does_not_keep_the_server_from_ending() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let warmup = || zeros("name: \"w\" batch_size: 1");
    let repository = repository.with("cold", gate.model("FP32[2]").with(warmup()));
    let server = explicit(repository, &[], &["--exit-timeout-secs=3600"]);
    thread::scope(|scope| {
        // Its answer may not come.
        let http = server.http;
        scope.spawn(move || {
            let path = b"POST /v2/repository/models/cold/load HTTP/1.1\r\nHost: t\r\n\
                         Connection: close\r\nContent-Length: 0\r\n\r\n";
            http.send_or_be_cut(&[path])
        });
        gate.is_reached();
        let workers = descendants(server.pid);
        assert!(!workers.is_empty());
        server.signal(Signal::TERM);
        assert_eq!(server.end().code(), Some(0), "{}", server.log());
        until("all workers to end", || workers.iter().all(|it| !is_alive(*it)));
    });
}

#[test]
fn a_failure_is_the_reason_why_the_model_is_not_there() {
    let one = "name: \"w\" batch_size: 1";
    let file = |name: &str| sample(one, &[("x:FP32[2]", &format!("input_data_file: \"{name}\""))]);
    let dies = execute(FLOATS, "os._exit(7)");
    let rows: [(&str, Model, &str); 11] = [
        (
            "raises",
            fails().with(zeros(one)),
            "failed to run warmup sample 'w': Failed to process the request(s) for model instance \
             'raises_0', message: ValueError: too cold",
        ),
        ("dies", dies.with(zeros(one)), "failed to run warmup sample 'w': Failed to process"),
        ("missing", id(&file("missing")), "No such file or directory"),
        (
            "short",
            id(&file("short")),
            "warmup setting expects 8 bytes, but the data provided from short only has 3 bytes",
        ),
        ("folder", id(&file(".")), "not a regular file"),
        ("escapes", id(&file("../../../secret")), "outside the model's warmup directory"),
        (
            "unknown",
            id(&sample(one, &[("q:FP32[2]", "zero_data: true")])),
            "unexpected inference input 'q' for model 'unknown'",
        ),
        (
            "variable",
            id(&sample(one, &[("x:FP32[-1]", "zero_data: true")])),
            "warmup setting expects all variable-size dimensions are specified for input 'x'",
        ),
        (
            "unset",
            id(&sample(one, &[("x:FP32[2]", "")])),
            "warmup setting expects input 'x' to have input_data_type set",
        ),
        (
            "unlike",
            id(&sample(one, &[("x:FP32[3]", "zero_data: true")])),
            "unexpected shape for input 'x' for model 'unlike'. Expected [2], got [3].",
        ),
        (
            "large",
            id(&zeros("name: \"w\" batch_size: 2")),
            "batch size 2 for 'large', max allowed is 0",
        ),
    ];
    let repository = rows.iter().fold(Repository::new(), |it, row| it.with(row.0, row.1.clone()));
    let server = explicit(repository.with("good", id(&zeros(one))), &["good"], &[]);
    for (name, ..) in &rows {
        server.repository.write_file(&format!("{name}/warmup/short"), "abc");
    }
    for (name, _, text) in rows {
        let error = server.load(name).error();
        assert!(error.contains(text), "expected `{text}` in `{error}`");
        let state = server.state(name);
        assert!(state.starts_with("UNAVAILABLE: ") || state == "not in the index", "{state}");
        server.infer("good", &floats(&[("x", &[1.0, 2.0])])).ok();
    }
    assert!(!server.log().contains("panicked at"));
}

pub(crate) fn id(warmup: &str) -> Model {
    native("identity", FLOATS).with(warmup)
}
