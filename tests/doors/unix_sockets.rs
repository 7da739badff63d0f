//! Unix sockets in place of ports: who may use them, what becomes of them, our commands over them.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};

use rustix::process::Signal;

use crate::support::{Repository, Server, native, troupe, until};

const FLAGS: &[&str] =
    &["--http-address=unix:h", "--grpc-address=unix:g", "--metrics-address=unix:m"];

fn start() -> Server {
    let id = native("identity", "x:FP32[-1] -> y:FP32[-1]");
    let server = Server::launch(Repository::of([("identity", id)]), FLAGS, &[]);
    let path = server.repository.beside("h");
    until("the server to be ready", || get(&path, "/v2/health/ready").starts_with("HTTP/1.1 200"));
    server
}

fn get(path: &Path, what: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    write!(stream, "GET {what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn all_three_listeners_serve_and_go_with_the_server() {
    let server = start();
    let path = |name: &str| server.repository.beside(name);
    for name in ["h", "g", "m"] {
        let mode = fs::metadata(path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660, "{name}");
    }
    assert!(get(&path("m"), "/metrics").contains("nv_inference_request_success"));
    let url = format!("unix:{}", path("g").display());
    let ended = troupe(&["infer", "identity", "-i", "[1, 2]", "--json", "--url", &url]);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let bench = ["bench", "identity", "-i", "[1, 2]", "--concurrency=2", "--seconds=0.2", "--url"];
    let ended = troupe(&[&bench[..], &[&url]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0), "{}", server.log());
    for name in ["h", "g", "m"] {
        assert!(!path(name).exists(), "{name} is left");
    }
    let ended = troupe(&["infer", "identity", "-i", "[1, 2]", "--url", &url]);
    assert!(ended.output.contains("nobody listens at unix:"), "{}", ended.output);
}

#[test]
fn a_socket_of_a_server_that_was_killed_is_replaced_and_one_in_use_is_not() {
    let server = start();
    let taken = Server::fails(&server.repository, FLAGS);
    assert_eq!(taken.code, Some(1));
    let expected = "failed to listen for HTTP requests at unix:h: Address already in use";
    assert!(taken.output.contains(expected), "{}", taken.output);
    assert!(get(&server.repository.beside("h"), "/v2/health/live").starts_with("HTTP/1.1 200"));
    server.signal(Signal::KILL);
    server.end();
    assert!(server.repository.beside("g").exists(), "it had no time to remove it");
    // It starts, and ends for want of its grace: the sockets were no reason.
    let other = Repository::new();
    for name in ["h", "g", "m"] {
        fs::rename(server.repository.beside(name), other.beside(name)).unwrap();
    }
    let again = Server::launch(other, FLAGS, &[]);
    until("the second to be ready", || {
        get(&again.repository.beside("h"), "/v2/health/ready").starts_with("HTTP/1.1 200")
    });
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let repository = Repository::new();
    fs::write(repository.beside("h"), "precious").unwrap();
    let ended = Server::fails(&repository, FLAGS);
    assert_eq!(ended.code, Some(1));
    assert!(ended.output.contains("a file of this name that is no socket"), "{}", ended.output);
    assert_eq!(fs::read_to_string(repository.beside("h")).unwrap(), "precious");
}
