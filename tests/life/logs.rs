//! `troupe logs`: what the log says about one model, and nothing about others.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use rustix::process::Signal;

use crate::support::{
    Model, Repository, Server,
    http::floats,
    native, python,
    server::{Ended, troupe},
};

use crate::life::repository::{FLOATS, id, one};

/// Prints, logs, and fails for negative numbers.
fn talker(name: &str) -> Model {
    python(
        FLOATS,
        &format!(
            "
            class TritonPythonModel:
                def initialize(self, args):
                    print('{name} begins')
                def execute(self, requests):
                    x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
                    if (x < 0).any():
                        raise ValueError('{name} dislikes it')
                    print('{name} prints', flush=True)
                    pb_utils.Logger.log_warn('{name} warns')
                    y = pb_utils.Tensor('y', x)
                    return [pb_utils.InferenceResponse([y]) for _ in requests]"
        ),
    )
}

fn logs(server: &Server, arguments: &[&str]) -> Ended {
    let url = server.http.0.to_string();
    troupe(&[&["logs", "--url", &url], arguments].concat())
}

#[test]
fn loads_failures_and_prints_of_one_model_are_shown() {
    let repository = Repository::new()
        .with("left", talker("left"))
        .with("right", talker("right"))
        .with("broken", Model::of("nonsense"));
    let server = Server::lenient(repository);
    for model in ["left", "right"] {
        server.infer(model, &one()).ok();
        assert_eq!(server.infer(model, &floats(&[("x", &[-1.0])])).status, 500);
        for text in ["begins", "prints", "warns", "dislikes it"] {
            server.logged(&format!("{model} {text}"));
        }
    }
    let left = logs(&server, &["left"]);
    assert_eq!(left.code, Some(0), "{}", left.output);
    for text in ["loaded `left`", "left begins", "left prints", "left warns", "left dislikes it"] {
        assert!(left.output.contains(text), "{text}: {}", left.output);
    }
    assert!(!left.output.contains("right"), "{}", left.output);
    let whole = server.log();
    for line in left.output.lines() {
        assert!(whole.lines().any(|it| it == line), "{line}");
    }
    // One that never loaded has lines, too.
    let broken = logs(&server, &["broken"]).output;
    assert!(broken.contains("failed to load `broken`"), "{broken}");
    let nobody = logs(&server, &["nobody"]);
    assert_eq!(nobody.code, Some(1));
    assert_eq!(nobody.output.trim(), "Request for unknown model: 'nobody' is not found");
}

#[test]
fn lines_behind_a_number_are_asked_for() {
    let server = Server::explicit(Repository::new().with("m", id()).with("other", id()));
    let get = |after: &str| server.http.get(&format!("/v2/models/m/logs{after}"));
    let none = get("").ok().json();
    assert_eq!(none["lines"].as_array().unwrap().len(), 0, "{none}");
    server.load("m").ok();
    server.logged("loaded `m`");
    let first = get("").ok().json();
    let lines = first["lines"].as_array().unwrap();
    assert!(!lines.is_empty(), "{first}");
    let next = first["next"].as_u64().unwrap();
    assert!(lines.iter().all(|it| it["number"].as_u64().unwrap() <= next), "{first}");
    server.load("other").ok();
    server.logged("loaded `other`");
    let more = get(&format!("?after={next}")).ok().json();
    assert_eq!(more["lines"].as_array().unwrap().len(), 0, "{more}");
    assert!(next < more["next"].as_u64().unwrap(), "{more}");
    get("?after=x").refuses(400, "failed to parse the query");
    server.http.get("/v2/models/nobody/logs").refuses(404, "unknown model: 'nobody' is not found");
}

#[test]
fn only_the_last_lines_are_printed_if_so_many_are_asked_for() {
    let server = Server::explicit(Repository::new().with("m", id()));
    for _ in 0..2 {
        server.load("m").ok();
        server.unload("m").ok();
    }
    let all = logs(&server, &["m"]).output;
    assert!(2 < all.lines().count(), "{all}");
    let last = logs(&server, &["m", "--tail", "2"]).output;
    let expected: Vec<&str> = all.lines().skip(all.lines().count() - 2).collect();
    assert_eq!(last.lines().collect::<Vec<_>>(), expected);
    assert_eq!(logs(&server, &["m", "-n", "0"]).output, "");
}

#[test]
fn lines_are_followed_over_a_restart_of_the_server() {
    let mut server = Server::explicit(Repository::new().with("m", id()));
    let mut follower = Command::new(env!("CARGO_BIN_EXE_troupe"))
        .args(["logs", "-f", "m", "--url", &server.http.0.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    for _ in 0..2 {
        server.load("m").ok();
        assert!(lines.any(|line| line.contains("loaded `m`")));
        server.repository.write("m", &native("identity", "x:FP32[2] -> y:FP32[2]"));
    }
    let address = server.http.0;
    server.signal(Signal::TERM);
    server.end();
    let mut told = BufReader::new(follower.stderr.take().unwrap()).lines().map(Result::unwrap);
    let waits = format!("{address} does not answer; waiting for it to come back");
    assert_eq!(told.next(), Some(waits));
    let repository = Repository::new().with("m", id());
    let again = Server::with(repository, &[&format!("--http-port={}", address.port())]);
    assert_eq!(told.next(), Some(format!("{address} answers again")));
    assert!(lines.any(|line| line.contains("loaded `m`")));
    drop(again);
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn a_restricted_group_wants_its_header_and_other_addresses_are_told_from_http() {
    let repository = Repository::new().with("m", id());
    let server = Server::with(repository, &["--http-restricted-api=troupe:admin-key=value"]);
    let refused = logs(&server, &["m"]);
    assert_eq!(refused.code, Some(1), "{}", refused.output);
    assert!(refused.output.contains("expecting header 'admin-key'"), "{}", refused.output);
    let shown = logs(&server, &["m", "--header", "admin-key: value"]);
    assert!(shown.output.contains("loaded `m`"), "{}", shown.output);
    let grpc = troupe(&["logs", "m", "--url", &server.grpc.to_string()]);
    assert_eq!(grpc.code, Some(1));
    assert!(grpc.output.contains("is it the HTTP port?"), "{}", grpc.output);
    let help = troupe(&["logs", "--help"]).output;
    assert!(help.contains("listens for HTTP") && help.contains("localhost:8000"), "{help}");
}
