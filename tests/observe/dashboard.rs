//! The page of live graphs, read by a real browser and without one.

use serde_json::json;

use crate::{
    observe::live_graph::picky,
    support::{Repository, Server, browser::Browser, http::floats, native},
};

#[test]
fn a_browser_sees_numbers_change_and_how_a_step_failed() {
    let Some(browser) = Browser::open((1200, 1000), true) else { return };
    let server = Server::start(picky());
    let good = || assert_eq!(server.infer("pair", &floats(&[("x", &[1.0])])).status, 200);
    good();
    browser.go(&server.metrics, "/ensemble/pair");
    browser.says("#status", "live");
    browser.says("#s-total", "1");
    browser.run("window.kept = true");
    (0..19).for_each(|_| good());
    browser.says("#s-total", "20");
    browser.says("#n2-errors", "0");
    assert_eq!(
        browser.run("return document.getElementById('n1').getAttribute('class').split(' ')[1]"),
        "working"
    );
    for _ in 0..3 {
        server.infer("pair", &floats(&[("x", &[-1.0])])).refuses(500, "never");
    }
    browser.says("#n2-errors", "3");
    // The page has learnt all that without being read again.
    assert_eq!(browser.run("return window.kept"), json!(true));
    assert!(browser.text("#n2-p50").contains('s') && browser.text("#f1-rate").contains("B/s"));

    browser.click("#n1");
    assert!(browser.shows("#dn1") && !browser.shows("#dn2"));
    browser.press("#n2", "\u{e007}");
    assert!(browser.shows("#dn2") && !browser.shows("#dn1"));
    assert_eq!(browser.text("#dn2-total"), "23");
    assert_eq!(browser.text("#dn2-error pre"), "<b>no</b> & \"never\"");
    assert_eq!(browser.text("#dn2-state"), "failing");
    assert_eq!(browser.run("return document.querySelectorAll('pre b').length"), json!(0));

    // Nothing was asked of anybody else, and the policy would not have let it.
    let urls = browser.run("return performance.getEntriesByType('resource').map(it => it.name)");
    let own = format!("http://{}/", server.metrics.0);
    let urls: Vec<&str> = urls.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    let of_others = |it: &&str| !it.starts_with(&own) && !it.starts_with("data:");
    assert!(!urls.is_empty() && !urls.iter().any(of_others), "{urls:?}");
    let policy = server.metrics.get("/ensemble/pair");
    let policy = policy.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"));
    let refused = browser.run(
        "return new Promise(done => { const it = document.createElement('script'); \
         it.onload = () => done('ran'); it.onerror = () => done('refused'); \
         it.src = 'data:text/javascript,0'; document.head.append(it); })",
    );
    assert_eq!(refused, "refused");
    server.is_well();
}

#[test]
fn a_phone_shows_the_slim_picture_and_a_sheet() {
    let Some(browser) = Browser::open((500, 900), true) else { return };
    let server = Server::start(picky());
    browser.go(&server.metrics, "/ensemble/pair");
    browser.says("#status", "live");
    assert!(browser.shows("#mn1") && !browser.shows("#n1"));
    assert!(!browser.shows("#dn1") && !browser.shows("#dn2"));
    browser.click("#mn2");
    assert!(browser.shows("#dn2"));
    browser.click("#dn2 .close");
    assert!(!browser.shows("#dn2"));
    assert_eq!(browser.run("return document.activeElement.id"), "mn2");
    let overflow = "return document.documentElement.scrollWidth - window.innerWidth";
    assert!(browser.run(overflow).as_i64().unwrap() <= 0);
    browser.go(&server.metrics, "/");
    browser.says("#status", "live");
    assert!(browser.run(overflow).as_i64().unwrap() <= 0);
}

#[test]
fn a_page_without_its_script_is_a_picture_with_numbers() {
    let server = Server::start(picky());
    server.infer("pair", &floats(&[("x", &[1.0])])).ok();
    server.infer("pair", &floats(&[("x", &[-1.0])])).refuses(500, "never");
    let page = server.metrics.get("/ensemble/pair");
    assert_eq!(page.ok().header("content-type"), Some("text/html; charset=utf-8"));
    let html = page.text();
    for part in [
        "<svg ",
        "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>",
        "&lt;b&gt;no&lt;/b&gt; &amp; &quot;never&quot;",
    ] {
        assert!(html.contains(part), "no {part} in {html}");
    }
    let Some(browser) = Browser::open((1200, 1000), false) else { return };
    browser.go(&server.metrics, "/ensemble/pair");
    assert_eq!(browser.text("#status"), "as of when it was read");
    assert_eq!((browser.text("#n1-errors"), browser.text("#n2-errors")), ("0".into(), "1".into()));
    assert!(browser.shows("#dn1") && browser.shows("#dn2"));
    browser.click("#n2");
    assert_eq!(browser.text("#dn2-error pre"), "<b>no</b> & \"never\"");
}

#[test]
fn the_first_page_lists_models_and_follows_them() {
    let repository = picky().with("late", native("no_such_op", "x:FP32[1] -> y:FP32[1]"));
    let server = Server::lenient(repository);
    let page = server.metrics.get("/").ok().text();
    for part in [
        "<a href=\"/ensemble/pair?version=1\">pair</a>",
        "<a href=\"/model/picky?version=1\">picky</a>",
        "3 of 4 ready",
        "UNAVAILABLE</span><p class=\"reason\">",
        "no_such_op",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    let missing = server.metrics.get("/model/late");
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("no_such_op"), "{}", missing.text());
    assert_eq!(server.metrics.get("/ensemble/nobody").status, 404);
    assert_eq!(server.metrics.get("/model/pair/changes?version=x").status, 400);
    let Some(browser) = Browser::open((1200, 1000), true) else { return };
    browser.go(&server.metrics, "/");
    browser.says("#status", "live");
    server.infer("pair", &floats(&[("x", &[1.0])])).ok();
    // Rows stand in the order of names: late, pair, picky, same.
    browser.says("#r1-requests", "1");
    browser.click(".ensembles a");
    browser.says("h1", "pair");
}

#[test]
fn a_reload_is_shown_and_an_unload_is_said() {
    let Some(browser) = Browser::open((1200, 1000), true) else { return };
    let server =
        Server::explicit(Repository::of([("same", native("identity", "x:FP32[1] -> y:FP32[1]"))]));
    server.load("same").ok();
    browser.go(&server.metrics, "/model/same");
    browser.says("#status", "live");
    server.infer("same", &floats(&[("x", &[1.0])])).ok();
    browser.says("#s-total", "1");
    let changed = native("identity", "x:FP32[2] -> y:FP32[2]").config;
    server.repository.write_file("same/config.pbtxt", changed);
    server.load("same").ok();
    browser.says("#s-total", "0");
    server.unload("same").ok();
    browser.says("#status", "Request for unknown model: 'same' has no available versions");
}

#[test]
fn a_flag_turns_the_page_off() {
    let server = Server::with(picky(), &["--allow-dashboard=false"]);
    for path in
        ["/", "/ensemble/pair", "/model/same", "/changes", "/dashboard.js", "/dashboard.css"]
    {
        assert_eq!(server.metrics.get(path).status, 404, "{path}");
    }
    server.metrics.get("/metrics").ok();
    server.http.get("/v2/models/pair/graph").ok();
}

#[test]
fn the_page_takes_get_and_nothing_else() {
    let server =
        Server::start(Repository::of([("same", native("identity", "x:FP32[1] -> y:FP32[1]"))]));
    for path in ["/", "/model/same", "/changes"] {
        server.metrics.get(path).ok();
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(server.metrics.send(method, path, &[], b"").status, 405, "{method} {path}");
        }
    }
    server.metrics.get("/model/%2e%2e%2fsame").error_page();
    server.metrics.get("/model/%ff").error_page();
}

impl crate::support::Answer {
    /// Refused, by whatever part of the server saw it first.
    fn error_page(&self) {
        assert!([400, 404].contains(&self.status), "{}", self.text());
    }
}
