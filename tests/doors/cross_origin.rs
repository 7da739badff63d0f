//! Requests of web pages of other origins: those of `--http-allow-origin` may read answers, and none of
//! them may change anything.

use serde_json::json;

use crate::support::{Answer, Http, Repository, Server, browser::Browser, http::floats, native};

const APP: &str = "https://app.example";

fn repository() -> Repository {
    Repository::of([("m", native("identity", "x:FP32[-1] -> y:FP32[-1]"))])
}

fn infer(http: &Http, headers: &[(&str, &str)]) -> Answer {
    let body = floats(&[("x", &[1.0, 2.0])]).to_string();
    http.send("POST", "/v2/models/m/infer", headers, body.as_bytes())
}

fn preflight(http: &Http, path: &str, origin: &str) -> Answer {
    let headers = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type, Troupe-Page-Token,x-user"),
    ];
    http.send("OPTIONS", path, &headers, b"")
}

#[test]
fn without_the_flag_no_page_of_another_origin_reads_anything() {
    let server = Server::start(repository());
    let answer = infer(&server.http, &[("Origin", APP)]);
    assert_eq!(answer.ok().header("access-control-allow-origin"), None);
    assert_eq!(answer.header("vary"), None);
    assert_eq!(preflight(&server.http, "/v2/models/m/infer", APP).status, 405);
}

#[test]
fn a_listed_origin_reads_answers_and_changes_nothing() {
    let flags = [
        "--model-control-mode=explicit",
        "--load-model=m",
        "--http-allow-origin=https://app.example,http://localhost:3000",
        "--http-allow-origin=https://other.example",
    ];
    let server = Server::with(repository(), &flags);
    let allowed = |it: &Answer| it.header("access-control-allow-origin").map(str::to_owned);
    for origin in [APP, "http://localhost:3000", "https://other.example"] {
        let answer = infer(&server.http, &[("Origin", origin)]);
        assert_eq!(allowed(answer.ok()).as_deref(), Some(origin));
        assert_eq!(answer.header("vary"), Some("Origin"));
        assert_eq!(answer.numbers("y"), [1.0, 2.0]);
        let exposed = answer.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("inference-header-content-length"), "{exposed}");
        // Errors can be read, too.
        let missing = server.http.send("GET", "/v2/nope", &[("Origin", origin)], b"");
        assert_eq!((missing.status, allowed(&missing).as_deref()), (404, Some(origin)));
    }
    for origin in ["http://app.example", "https://app.example.evil.example", "null", "", "*"] {
        let answer = infer(&server.http, &[("Origin", origin)]);
        assert_eq!((answer.status, allowed(&answer)), (200, None), "{origin}");
        assert_eq!(preflight(&server.http, "/v2/models/m/infer", origin).status, 405, "{origin}");
    }
    let asked = preflight(&server.http, "/v2/models/m/infer", APP);
    assert_eq!((asked.status, allowed(&asked).as_deref()), (204, Some(APP)));
    assert_eq!(asked.header("access-control-allow-methods"), Some("GET, HEAD, POST"));
    // All but that of our own page, and no cookies.
    assert_eq!(asked.header("access-control-allow-headers"), Some("content-type, x-user"));
    assert_eq!(asked.header("access-control-allow-credentials"), None);
    let refusal = "requests of web pages must not change this server";
    for path in ["/v2/repository/models/m/unload", "/v2/logging", "/v2/models/m/tap"] {
        let answer = server.http.send("POST", path, &[("Origin", APP)], b"");
        answer.refuses(403, refusal);
        assert_eq!(allowed(&answer).as_deref(), Some(APP), "the page can read why");
    }
    // The page beside the metrics, whose text holds the token, is for no other origin.
    let page = server.metrics.send("GET", "/", &[("Origin", APP)], b"");
    assert_eq!(allowed(page.ok()), None);
    assert_eq!(server.state("m"), "READY");
}

#[test]
fn all_origins_may_be_allowed_and_restricted_groups_still_ask_for_their_header() {
    let flags = ["--http-allow-origin=*", "--http-restricted-api=inference:key=hunter2"];
    let server = Server::with(repository(), &flags);
    let refused = infer(&server.http, &[("Origin", "null")]);
    assert_eq!(refused.status, 403);
    assert_eq!(refused.header("access-control-allow-origin"), Some("*"));
    let asked = preflight(&server.http, "/v2/models/m/infer", "null");
    assert_eq!((asked.status, asked.header("vary")), (204, None));
    infer(&server.http, &[("Origin", "null"), ("Key", "hunter2")]).ok();
}

#[test]
fn an_origin_that_no_browser_sends_ends_the_start() {
    let ended = Server::fails(&repository(), &["--http-allow-origin=app.example"]);
    assert_ne!(ended.code, Some(0));
    assert!(ended.output.contains("an origin is `https://app.example`"), "{}", ended.output);
}

#[test]
fn a_browser_lets_a_page_of_a_listed_origin_infer() {
    let Some(browser) = Browser::open((600, 400), true) else { return };
    let other = Server::start(repository());
    let origin = format!("http://{}", other.http.0);
    let server = Server::with(repository(), &[&format!("--http-allow-origin={origin}")]);
    let closed = Server::start(repository());
    // An answer in JSON, whose origin is the other server's, and which has no policy.
    browser.go(&other.http, "/v2");
    let ask = |server: &Server| {
        let request = floats(&[("x", &[3.0])]).to_string();
        browser.run(&format!(
            "return fetch('http://{}/v2/models/m/infer', {{method: 'POST', body: {}, \
             headers: {{'content-type': 'application/json'}}}}) \
             .then(it => it.json()).then(it => it.outputs[0].data[0], it => it.name)",
            server.http.0,
            json!(request)
        ))
    };
    assert_eq!(ask(&server), json!(3));
    assert_eq!(ask(&closed), json!("TypeError"));
}
