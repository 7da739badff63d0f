//! Every route by every method: a known answer or a clear refusal, never a mistake of the server's
//! own and never silence.

use std::io::{ErrorKind, Read, Write};

use super::restricted::ROUTES;
use crate::support::{Http, Repository, Server, native};

const METHODS: &[&str] =
    &["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"];

/// None of them is what any route wants, but the empty ones.
const BODIES: &[&[u8]] =
    &[b"", b"{}", b"[[[", b"\xff\xfe\0", b"{\"parameters\":7,\"inputs\":null}"];

/// The number of the answer; `None` when the server closes without one. Nothing behind the head is
/// read: an answer to HEAD has none of the bytes it announces.
fn status(http: &Http, method: &str, path: &str, body: &[u8]) -> Option<u16> {
    let mut stream = http.connect();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while !answer.windows(4).any(|it| it == b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&part[..length]),
            // Closed before it had read the body.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{method} {path}: no answer in time: {error}"),
        }
    }
    let text = String::from_utf8_lossy(&answer);
    text.split(' ').nth(1).map(|it| it.parse().expect("an answer begins with its status"))
}

/// What is not built, or not allowed on this server, is said so; Triton's words for data of another
/// shape come with 500, and none of these bodies has any.
fn is_known(status: u16) -> bool {
    (200..500).contains(&status) || status == 501
}

#[test]
fn every_route_answers_every_method() {
    let model = native("identity", "x:FP32[-1] -> y:FP32[-1]");
    let server = Server::explicit(Repository::of([("m", model)]));
    server.load("m").ok();
    for (_, allowed, path) in ROUTES {
        for method in METHODS {
            for body in BODIES {
                let shown = format!("{method} {path} {:?}", String::from_utf8_lossy(body));
                let status = status(&server.http, method, path, body);
                let Some(status) = status else { panic!("{shown}: closed without an answer") };
                assert!(is_known(status), "{shown}: {status}");
                // HEAD is answered wherever GET is.
                let verb = if *method == "HEAD" { "GET" } else { method };
                let may_be_allowed = allowed.split('|').any(|it| it == verb);
                assert_eq!(status != 405, may_be_allowed, "{shown}: {status}");
            }
        }
        server.load("m").ok();
    }
    server.still_serves("all routes");
}

#[test]
fn every_path_of_the_metrics_port_answers_every_method() {
    let model = native("identity", "x:FP32[-1] -> y:FP32[-1]");
    let server = Server::start(Repository::of([("m", model)]));
    let paths = ["/", "/metrics", "/model/m", "/dashboard.js", "/v2/health/live", "/no/such/path"];
    for path in paths {
        for method in METHODS {
            for body in BODIES {
                let status = status(&server.metrics, method, path, body);
                assert!(status.is_some_and(is_known), "{method} {path}: {status:?}");
            }
        }
    }
    server.still_serves("all paths");
}
