//! Shutdown: the server drains, refuses new requests, and leaves nothing behind.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    process::Command,
    thread,
    time::Duration,
};

use rustix::process::Signal;
use tonic::Code;

use crate::support::{
    Repository, Server, ensemble,
    gate::Gate,
    grpc::{self, Grpc},
    http::{self, floats},
    models::execute,
    native,
    process::{self, descendants, is_alive, shared_memory_files},
    troupe, until,
};

const CHAIN: &str = "A:FP32[-1] -> Z:FP32[-1]";

/// A pipeline whose first step waits at a gate, and a model beside it.
fn gated(gate: &Gate, repository: Repository) -> Repository {
    repository
        .with("slow", gate.model("FP32[-1]"))
        .with("behind", gate.model("FP32[-1]"))
        .with("fast", native("identity", "x:FP32[-1] -> y:FP32[-1]"))
        .with("e", ensemble(CHAIN, &["slow: x=A -> y=m", "behind: x=m -> y=k", "fast: x=k -> y=Z"]))
}

#[test]
fn pipelines_in_flight_finish_all_their_steps_and_new_ones_are_refused() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let server = Server::start(gated(&gate, repository));
    let mut grpc = Grpc::connect(server.grpc);
    grpc.infer(grpc::floats("fast", &[("x", &[1.0])])).unwrap();
    // Open before the signal, so that it is not the listener that refuses.
    let (mut health, mut late) = (server.http.connect(), server.http.connect());
    health.write_all(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n").unwrap();
    late.write_all(b"POST /v2/models/fast/infer HTTP/1.1\r\nHost: t\r\n").unwrap();
    let in_flight = server.http.start("e", &floats(&[("A", &[3.0])]));
    gate.is_reached();
    // `timeout` sends two.
    server.signal(Signal::TERM);
    server.signal(Signal::TERM);
    server.logged("Waiting for in-flight requests to complete.");
    health.write_all(b"Connection: close\r\n\r\n").unwrap();
    let answer = http::finish(health);
    assert_eq!((answer.status, answer.error().as_str()), (503, "Server exiting"));
    let body = floats(&[("x", &[1.0])]).to_string();
    let rest = format!("Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    late.write_all(rest.as_bytes()).unwrap();
    let answer = http::finish(late);
    assert_eq!(answer.status, 503, "{}", answer.text());
    let refused = grpc.infer(grpc::floats("fast", &[("x", &[1.0])])).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    gate.let_through(2);
    assert_eq!(http::finish(in_flight).numbers("Z"), [3.0]);
    assert_eq!(server.end().code(), Some(0), "{}", server.log());
    assert_eq!(server.log().matches("panicked").count(), 0);
}

#[test]
fn an_idle_server_ends_at_once_with_0_and_leaves_nothing() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let before = shared_memory_files();
        let repository = Repository::new();
        let gate = Gate::new(&repository, "gate");
        let server = Server::with(gated(&gate, repository), &["--exit-timeout-secs=3600"]);
        let _never_used = server.http.connect();
        let mut kept_alive = server.http.connect();
        kept_alive.write_all(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        kept_alive.read_exact(&mut [0; 12]).unwrap();
        let workers = descendants(server.pid);
        assert!(!workers.is_empty());
        server.signal(signal);
        assert_eq!(server.end().code(), Some(0), "{}", server.log());
        all_end(&workers);
        process::no_file_is_left(&before);
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    let before = shared_memory_files();
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let server = Server::with(gated(&gate, repository), &["--exit-timeout-secs=3600"]);
    let _in_flight = server.http.start("e", &floats(&[("A", &[3.0])]));
    gate.is_reached();
    let workers = descendants(server.pid);
    server.signal(Signal::TERM);
    server.logged("Waiting for in-flight requests to complete.");
    // Sooner, it is an echo of the first.
    thread::park_timeout(Duration::from_secs(1));
    server.signal(Signal::TERM);
    // The gate stays closed: a server that waited would not end within our patience.
    assert_ne!(server.end().code(), Some(0));
    all_end(&workers);
    process::no_file_is_left(&before);
}

#[test]
fn what_does_not_finish_in_time_is_given_up() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let server = Server::with(gated(&gate, repository), &["--exit-timeout-secs=1"]);
    let _in_flight = server.http.start("e", &floats(&[("A", &[3.0])]));
    gate.is_reached();
    let workers = descendants(server.pid);
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(1), "{}", server.log());
    assert!(
        server.log().contains("Exit timeout expired. Exiting immediately."),
        "{}",
        server.log()
    );
    all_end(&workers);
}

#[test]
fn a_killed_server_leaves_no_process_and_no_file() {
    let before = shared_memory_files();
    let large = vec![1.0f32; 1 << 18];
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let loops = execute("x:FP32[-1] -> y:FP32[-1]", "while True:\n    pass");
    let server = Server::start(gated(&gate, repository).with("loops", loops));
    // Work in flight, with tensors in shared memory.
    let mut grpc = Grpc::connect(server.grpc);
    gate.let_through(2);
    grpc.infer(grpc::floats("e", &[("A", &large)])).unwrap();
    let _in_flight = server.http.start("e", &floats(&[("A", &large[..1000])]));
    let _in_a_loop = server.http.start("loops", &floats(&[("x", &[1.0])]));
    gate.is_reached();
    gate.is_reached();
    gate.is_reached();
    let workers = descendants(server.pid);
    assert!(3 <= workers.len(), "{workers:?}");
    server.signal(Signal::KILL);
    server.end();
    all_end(&workers);
    process::no_file_is_left(&before);
}

#[test]
fn a_signal_while_models_load_ends_the_server() {
    let repository = Repository::new();
    let begun = repository.beside("begun");
    let source = format!(
        "import time\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        \
         open('{}', 'w').close()\n        __import__('threading').Event().wait()\n    def \
         execute(self, requests):\n        return []\n",
        begun.display()
    );
    let model = crate::support::python("x:FP32[1] -> y:FP32[1]", &source);
    let server = Server::launch(repository.with("m", model), &["--exit-timeout-secs=1"], &[]);
    until("the model to initialize", || begun.exists());
    let workers = descendants(server.pid);
    server.signal(Signal::TERM);
    server.end();
    all_end(&workers);
}

#[test]
fn a_port_that_is_taken_is_an_error_and_not_a_hang() {
    let server = Server::start(Repository::new());
    let port = format!("--http-port={}", server.http.0.port());
    let ended = Server::fails(&Repository::new(), &[&port]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(ended.output.contains(&server.http.0.port().to_string()), "{}", ended.output);
    server.is_well();
}

#[test]
fn a_wrong_command_line_is_told_and_nothing_starts() {
    for (arguments, text) in [
        (&["--nonsense"][..], "--nonsense"),
        (&["--http-port=x"], "http-port"),
        (&["--model-control-mode=poll"], "not supported yet"),
        (&["--cache-config=local,size=x"], "cache-config"),
        (&["--load-model=a"], "--model-control-mode=explicit"),
    ] {
        let ended = troupe(arguments);
        assert!(!matches!(ended.code, Some(0) | None), "{arguments:?}: {}", ended.output);
        assert!(ended.output.contains(text), "{arguments:?}: {}", ended.output);
    }
    assert_eq!(troupe(&["--help"]).code, Some(0));
    assert_eq!(troupe(&["--version"]).code, Some(0));
}

#[test]
fn under_tritons_name_it_takes_the_same_flags() {
    let repository = Repository::of([("m", native("identity", "x:FP32[-1] -> y:FP32[-1]"))]);
    let link = repository.beside("tritonserver");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_troupe"), &link).unwrap();
    let output = Command::new(&link)
        .arg(format!("--model-store={}", repository.beside("nothing").display()))
        .args(["--http-port=0", "--grpc-port=0", "--allow-metrics=false", "--log-verbose=1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing"), "{said}");
    let said = Command::new(&link).arg("--help").output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&said).contains("--model-repository"));
}

#[test]
fn a_repository_that_is_not_there_fails_the_start() {
    let ended = Server::fails(&Repository::new(), &["--model-repository=no/such/folder"]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(ended.output.contains("no/such/folder"), "{}", ended.output);
}

fn all_end(workers: &BTreeSet<u32>) {
    until("all workers to end", || workers.iter().all(|it| !is_alive(*it)));
    assert!(workers.iter().all(|it| descendants(*it).is_empty() || !process::is_alive(*it)));
}
