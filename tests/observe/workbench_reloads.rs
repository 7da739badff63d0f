//! A page that stays open while its model is loaded anew: what is written in its form is not lost.

use serde_json::json;

use super::workbench::{cells, fill, send};
use crate::{
    backends::ocr::here,
    support::{Repository, Server, browser::Browser, native, venv},
};

const TEXTS: &str = "x:BYTES[-1] z:FP32[-1] -> y:BYTES[-1] w:FP32[-1]";
const STRUCTURE: &str = "document.body.dataset.structure";

/// Waits until the page has become another by itself.
fn renewed(browser: &Browser, change: impl FnOnce()) {
    let before = browser.run(&format!("window.kept = true; return {STRUCTURE}"));
    change();
    browser.says_of("body", &format!("{STRUCTURE} !== {before}"), &json!(true));
    assert_eq!(browser.run("return window.kept"), json!(true), "it was not read anew");
}

#[test]
fn a_form_keeps_what_is_written_in_it_when_its_model_changes() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let server = Server::explicit(Repository::of([("same", native("identity", TEXTS))]));
    server.load("same").ok();
    browser.go(&server.metrics, "/model/same");
    browser.says("#status", "live");
    browser.press("#try [type=file]", here("pipelines/ocr/images/sign_stop.jpg").to_str().unwrap());
    fill(&browser, "[data-name=z] textarea", "[7, 8]");
    browser.run("document.querySelector('[data-name=z] textarea').focus()");
    let written = "return [document.querySelector('#try [type=file]').files.length, \
                   document.querySelector('[data-name=z] textarea')?.value]";
    let load = |signature: &str| {
        server.repository.write_file("same/config.pbtxt", native("identity", signature).config);
        // A config that means the same is no reason to load anything.
        server.repository.write_file("same/1/new", "");
        server.load("same")
    };
    // Another copy of the same: even the focus stays.
    renewed(&browser, || drop(load(TEXTS).ok().text()));
    assert_eq!(browser.run(written), json!([1, "[7, 8]"]));
    let focused = "return document.activeElement.getAttribute('aria-label')";
    assert_eq!(browser.run(focused), "value of z");
    // Another form: what both have stays.
    renewed(&browser, || {
        drop(load(
            &TEXTS.replace("z:FP32", "v:INT8[-1] z:FP32").replace("w:FP32", "u:INT8[-1] w:FP32"),
        ));
    });
    assert_eq!(browser.run(written), json!([1, "[7, 8]"]));
    assert!(browser.shows("[data-name=v] textarea") && browser.shows("#try .preview img"));
    // A load that fails is told, and what was loaded before goes on.
    renewed(&browser, || {
        server.repository.write_file("same/config.pbtxt", "backend: \"none\"");
        assert_eq!(server.load("same").status, 400);
    });
    assert!(browser.text(".notice").contains("none"), "{}", browser.text(".notice"));
    assert_eq!(browser.run(written), json!([1, "[7, 8]"]));
    // Away and back again.
    renewed(&browser, || drop(server.unload("same").ok().text()));
    browser.says("#status", "Request for unknown model: 'same' has no available versions");
    assert_eq!(browser.run("return document.getElementById('try')"), json!(null));
    renewed(&browser, || drop(load(TEXTS).ok().text()));
    assert_eq!(browser.run(written), json!([1, "[7, 8]"]));
    browser.click("#try .remove");
    fill(&browser, "[data-name=x] textarea", "[\"a\", \"b\"]");
    send(&browser);
    assert_eq!(cells(&browser), json!(["a", "7", "b", "8"]));
    server.is_well();
}

#[test]
fn a_page_follows_the_file_that_is_saved() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let source = |body: &str| format!("def predict(text: str) -> str:\n    return {body}\n");
    let repository = Repository::new();
    repository.write_file("shout/1/model.py", source("text.upper("));
    let python = format!("--backend-config=python,python={}", venv::python().display());
    let server = Server::with(repository, &["--watch", "--exit-on-error=false", &python]);
    browser.go(&server.metrics, "/model/shout");
    browser.says_of("main", "it.textContent.includes('SyntaxError')", &json!(true));
    let save = |body: &str| server.repository.write_file("shout/1/model.py", source(body));
    save("text.upper()");
    browser.says_of("#try", "true", &json!(true));
    fill(&browser, "#try textarea", "mine");
    send(&browser);
    assert_eq!(cells(&browser), json!(["MINE"]));
    renewed(&browser, || save("text[::-1]"));
    assert_eq!(browser.run("return document.querySelector('#try textarea').value"), "mine");
    send(&browser);
    assert_eq!(cells(&browser), json!(["enim"]));
    renewed(&browser, || save("text["));
    browser.says_of(".notice", "it.textContent.includes('SyntaxError')", &json!(true));
    send(&browser);
    assert_eq!(cells(&browser), json!(["enim"]));
    server.is_well();
}
