//! What somebody finds who knows only the HTTP port: a pointer at `/`, the list of models, HEAD.

use std::{io::Read, io::Write, process::Command};

use serde_json::json;

use crate::support::{Answer, Http, Repository, Server, native};

fn repository() -> Repository {
    Repository::of([
        ("m", native("identity", "x:FP32[-1] -> y:FP32[-1]")),
        ("broken", native("no_such_op", "x:FP32[1] -> y:FP32[1]")),
    ])
}

fn root(http: &Http, host: &str, accept: &str) -> Answer {
    let head =
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    http.send_raw(&[head.as_bytes()])
}

#[test]
fn the_root_of_the_http_port_leads_to_the_page_and_to_the_api() {
    let server = Server::lenient(repository());
    let page = format!("http://127.0.0.1:{}/", server.metrics.0.port());
    let pointer = root(&server.http, "127.0.0.1:1", "*/*");
    let pointer = pointer.ok().json();
    assert_eq!(pointer["links"]["page"], page.as_str(), "{pointer}");
    assert_eq!(pointer["links"]["models"], "/v2/models");
    assert_eq!(pointer["name"], "triton");
    let browser = "text/html,application/xhtml+xml";
    let html = root(&server.http, "127.0.0.1:1", browser);
    assert_eq!(html.ok().header("content-type"), Some("text/html; charset=utf-8"));
    assert!(html.text().contains(&format!("<a href=\"{page}\">")), "{}", html.text());
    let policy = html.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    // A name that is none stays out of the page.
    let html = root(&server.http, "a\"><script>alert(1)</script>", browser).text();
    assert!(!html.contains("<script"), "{html}");
    // The log says it at start.
    server.logged(&format!("open http://localhost:{}/ in a browser", server.metrics.0.port()));
}

#[test]
fn without_the_page_nothing_leads_there() {
    let model = native("identity", "x:FP32[-1] -> y:FP32[-1]");
    let server = Server::with(Repository::of([("m", model)]), &["--allow-dashboard=false"]);
    let pointer = server.http.get("/").ok().json();
    assert_eq!(pointer["links"].get("page"), None, "{pointer}");
    assert_eq!(server.has_logged("in a browser"), None);
}

#[test]
fn the_list_of_models_has_their_states_and_reasons() {
    let server = Server::lenient(repository());
    let list = server.http.get("/v2/models").ok().json();
    let models = list["models"].as_array().unwrap();
    assert_eq!(models.len(), 2, "{list}");
    let broken = &models[0];
    assert_eq!((&broken["name"], &broken["state"]), (&json!("broken"), &json!("UNAVAILABLE")));
    assert_eq!(broken["versions"], json!([]));
    assert!(broken["reason"].as_str().unwrap().contains("no_such_op"), "{broken}");
    let ready = json!({"name": "m", "versions": ["1"], "state": "READY", "platform": "native"});
    assert_eq!(models[1], ready);
}

/// The head of an answer, and what follows it on a connection that stays open.
fn head(http: &Http, path: &str) -> String {
    let url = format!("http://{}{path}", http.0);
    let answer = Command::new("curl").args(["-sI", "--max-time", "60", &url]).output().unwrap();
    String::from_utf8(answer.stdout).unwrap()
}

#[test]
fn head_is_answered_wherever_get_is_and_has_no_body() {
    let server = Server::lenient(repository());
    for (http, paths) in [
        (&server.http, &["/", "/v2", "/v2/models", "/v2/models/m", "/v2/health/live"][..]),
        (&server.metrics, &["/", "/model/m", "/metrics", "/v2/health/live", "/dashboard.js"]),
    ] {
        for path in paths {
            let answer = head(http, path);
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            let whole = http.get(path).ok().body.len();
            if !["/metrics", "/", "/model/m"].contains(path) {
                let length = format!("content-length: {whole}\r\n");
                assert!(answer.to_lowercase().contains(&length), "{path}: {answer}");
            }
        }
    }
    assert!(head(&server.http, "/v2/nope").starts_with("HTTP/1.1 404"));
    assert!(head(&server.http, "/v2/models/m/infer").starts_with("HTTP/1.1 405"));
    // Two answers on one connection: nothing of a body stands between them.
    let mut stream = server.http.connect();
    let two = "HEAD /v2 HTTP/1.1\r\nHost: a\r\n\r\n\
               GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(two.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let (first, second) = answers.split_once("\r\n\r\n").unwrap();
    assert!(first.starts_with("HTTP/1.1 200") && second.starts_with("HTTP/1.1 200"), "{answers}");
}
