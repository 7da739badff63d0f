//! The real clients: tritonclient in all its forms, the client of the pipeline, perf_analyzer.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use crate::{
    api::{
        generate::{PARROT, PROMPT},
        sequence_models::sequence_models,
    },
    decoupled::models::{ENDS_WITH_LAST, FLOATS, REPEATS, STUMBLES, decoupled},
    python::plain::plain_models,
    support::{
        Model, Repository, Server, at_once, ensemble,
        models::{delay, execute},
        native,
        perf_analyzer::perf_analyzer,
        python, venv,
    },
};

/// Sends responses until it is cancelled; asked with 0, answers how often it was.
const TICKS: &str = "
    import threading

    class TritonPythonModel:
        def initialize(self, args):
            self.cancelled = 0

        def execute(self, requests):
            for it in requests:
                sender = it.get_response_sender()
                if pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()[0] == 0:
                    sender.send(self.response(self.cancelled), 1)
                else:
                    threading.Thread(target=self.tick, args=(sender,)).start()

        def response(self, value):
            return pb_utils.InferenceResponse([pb_utils.Tensor('y', np.array([value], np.float32))])

        def tick(self, sender):
            while not sender.is_cancelled():
                sender.send(self.response(1))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            self.cancelled += 1";

/// Answers with what it got.
const SAME: &str = "
    get = pb_utils.get_input_tensor_by_name
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy())])
        for it in requests
    ]";

/// The models of this project, and some that the scripts in `tests/clients` ask for.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let id = || native("identity", "x:FP32[-1,2] -> y:FP32[-1,2]");
    let raises = execute("INPUT0:FP32[4] -> y:FP32[4]", "raise ValueError('no luck')");
    let mut repository = Repository::new()
        .with_onnx("densenet_onnx")
        .with_onnx("simple")
        .with("raises", raises)
        .with("repeats", decoupled(execute(FLOATS, REPEATS)))
        .with("ends_with_last", decoupled(execute(FLOATS, ENDS_WITH_LAST)))
        .with("stumbles", decoupled(execute(FLOATS, STUMBLES)))
        .with("ticks", decoupled(python(FLOATS, TICKS)))
        .with("parrot", decoupled(execute(PROMPT, PARROT)))
        .with("waits", delay(300, "x:FP32[-1,2] -> y:FP32[-1,2]"));
    let pets = native("identity", "x:FP32[4] -> y:FP32[4]").batch(8);
    let labels = "name: \"y\" label_filename: \"pets.txt\"";
    repository.write("pets", &Model { config: pets.config.replace("name: \"y\"", labels), ..pets });
    repository.write_file("pets/pets.txt", "cat\nCOFFEE MUG\ndog\n");
    for name in ["http_only", "grpc_only", "http_comes", "grpc_comes"] {
        repository.write(name, &id());
    }
    for (name, model) in sequence_models() {
        repository.write(name, &model);
    }
    for (name, model) in plain_models() {
        repository.write(&format!("plain_{name}"), &model);
    }
    let types = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 BF16 FP32 FP64 BYTES";
    for dtype in types.split(' ') {
        let signature = format!("x:{dtype}[-1,2] -> y:{dtype}[-1,2]");
        repository.write(&format!("id_{dtype}"), &native("identity", &signature));
    }
    for dtype in types.split(' ').filter(|it| *it != "BF16") {
        let signature = format!("x:{dtype}[-1,2] -> y:{dtype}[-1,2]");
        repository.write(&format!("py_{dtype}"), &execute(&signature, SAME));
    }
    // Tracing is off, and has somewhere to write if a client turns it on.
    let traces =
        format!("--trace-config=triton,file={}", repository.beside("trace.json").display());
    let models = own_models();
    let flags = [
        &models,
        &traces,
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-client-shm=true",
    ];
    Server::with(repository, &flags)
});

fn own_models() -> String {
    format!("--model-repository={}", here("model_repository").display())
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a program to its end; says what it printed when it fails.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    println!("{said}");
    assert!(output.status.success(), "{command:?} ended with {}", output.status);
    said
}

#[track_caller]
fn unittest(module: &str) {
    let said = run(Command::new(venv::python())
        .args(["-m", "unittest", "--verbose", module])
        .current_dir(here("tests/clients"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TROUPE_HTTP", SERVER.http.0.to_string())
        .env("TROUPE_GRPC", SERVER.grpc.to_string()));
    assert!(said.contains("\nOK"), "no test has run");
    SERVER.is_well();
}

#[test]
fn the_http_client() {
    unittest("test_http");
}

#[test]
fn the_asyncio_http_client() {
    unittest("test_http_aio");
}

#[test]
fn the_grpc_client_with_callbacks_asyncio_and_streams() {
    unittest("test_grpc");
}

#[test]
fn the_grpc_client_and_decoupled_models() {
    unittest("test_decoupled");
}

#[test]
fn both_clients_and_sequences() {
    unittest("test_sequence");
}

#[test]
fn a_client_of_the_generate_extension() {
    unittest("test_generate");
}

#[test]
fn both_clients_and_plain_functions_and_classes() {
    unittest("test_plain");
}

#[test]
fn both_clients_change_trace_settings() {
    unittest("test_trace");
}

#[test]
fn both_clients_get_classes() {
    unittest("test_classification");
}

#[test]
fn both_clients_hand_tensors_over_in_shared_memory() {
    unittest("test_shared_memory");
}

#[test]
fn the_client_of_the_pipeline_prints_the_right_numbers() {
    let said = run(Command::new(venv::python())
        .arg(here("pipelines/add_sub_mul/client.py"))
        .args(["--http", &SERVER.http.0.to_string(), "--grpc", &SERVER.grpc.to_string()]));
    assert_eq!(said.matches("[24. 32. 40. 48.]").count(), 3, "{said}");
}

#[test]
fn perf_analyzer_reports_the_steps_of_an_ensemble() {
    if perf_analyzer().is_none() {
        return;
    }
    let id = || native("identity", "x:FP32[4] -> y:FP32[4]");
    let steps = ["first: x=INPUT -> y=m", "second: x=m -> y=OUTPUT"];
    let server = Server::start(
        Repository::of([("first", id()), ("second", id())])
            .with("ensemble", ensemble("INPUT:FP32[4] -> OUTPUT:FP32[4]", &steps)),
    );
    for (protocol, address) in [("http", server.http.0), ("grpc", server.grpc)] {
        let said = run(perf_analyzer()
            .expect("it was there")
            .args(["-m", "ensemble", "-i", protocol, "-u", &address.to_string()])
            .args(["--measurement-mode", "count_windows", "--measurement-request-count", "50"])
            .args(["--max-trials", "3", "-s", "1000"]));
        for text in ["Composing models:", "first, version", "second, version", "Inference count:"] {
            assert!(said.contains(text), "no `{text}` over {protocol}:\n{said}");
        }
    }
    server.is_well();
}

/// Sequences of five requests or so, by every kind of call.
const SEQUENCES: &[(&str, &str)] = &[
    ("simple_sequence", "-i http --concurrency-range 3 --shared-memory system"),
    ("simple_sequence", "-i grpc --sync --concurrency-range 3"),
    ("simple_dyna_sequence", "-i http --sync --concurrency-range 3"),
    ("simple_dyna_sequence", "-i grpc --async --concurrency-range 3 --shared-memory system"),
    (
        "simple_dyna_sequence",
        "-i grpc --streaming --request-rate-range 60 --num-of-sequences 3 \
         --sequence-id-range 500:520",
    ),
];

#[test]
fn perf_analyzer_drives_sequences() {
    if perf_analyzer().is_none() {
        return;
    }
    // Who begins to use regions unregisters those of everybody: a server for these.
    let (with, without): (Vec<_>, Vec<_>) =
        SEQUENCES.iter().partition(|(_, flags)| flags.contains("--shared-memory"));
    at_once(2, |index| drive_sequences(if index == 0 { &with } else { &without }));
}

fn drive_sequences(cases: &[&(&str, &str)]) {
    let models = sequence_models().into_iter().filter(|(name, _)| !name.contains("string"));
    let server = Server::with(Repository::of(models), &["--allow-client-shm=true"]);
    for (model, flags) in cases {
        let address = if flags.contains("grpc") { server.grpc } else { server.http.0 };
        let said = run(perf_analyzer()
            .expect("it was there")
            .args(["-m", model, "-u", &address.to_string(), "--sequence-length", "5"])
            .args(["--measurement-mode", "count_windows", "--measurement-request-count", "20"])
            .args(["-s", "1000"])
            .args(flags.split(' ')));
        let count = said.split("Sequence count: ").nth(1).and_then(|it| it.split(' ').next());
        assert!(count.is_some_and(|it| it.parse().is_ok_and(|it: u32| it != 0)), "{model} {flags}");
    }
    server.is_well();
}
