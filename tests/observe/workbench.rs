//! The form on a model's page, filled in and sent by a real browser.

use std::process::Command;

use serde_json::{Value, json};

use crate::{
    backends::ocr::{here, ocr},
    observe::live_graph::picky,
    support::{Repository, Server, browser::Browser, http::floats, native, venv},
};

/// What the page says to those who look at it without a script.
fn token(server: &Server) -> String {
    token_of(&server.metrics.get("/").text()).to_owned()
}

fn token_of(page: &str) -> &str {
    let (_, token) = page.split_once("name=\"troupe-page-token\" content=\"").unwrap();
    token.split('"').next().unwrap()
}

/// Writes into a field of the form, in the place of what stands there.
pub(super) fn fill(browser: &Browser, selector: &str, text: &str) {
    let (selector, text) = (json!(selector), json!(text));
    browser.run(&format!("document.querySelector({selector}).value = {text}"));
}

pub(super) fn send(browser: &Browser) {
    browser.run("delete document.getElementById('try-answer').dataset.state");
    browser.click("#try [type=submit]");
    browser.says_of("#try-answer", "it.dataset.state", &json!("done"));
}

/// The text of all cells of the answer's table.
pub(super) fn cells(browser: &Browser) -> Value {
    browser.run(
        "return [...document.querySelectorAll('#try-answer .answer td')].map(it => it.textContent)",
    )
}

/// What a button that copies has written.
pub(super) fn copied(browser: &Browser, kind: &str) -> String {
    browser.click(&format!("#try [data-code={kind}]"));
    browser.says_of("#try-code", "it.dataset.kind", &json!(kind));
    browser.run("return document.getElementById('try-code').textContent").as_str().unwrap().into()
}

fn shell(command: &str, folder: &str) -> Value {
    let ran = Command::new("sh").args(["-c", command]).current_dir(here(folder)).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|it| panic!("{it} in {text} of\n{command}"))
}

#[test]
fn a_form_asks_an_ensemble_and_shows_its_answer_its_times_and_its_error() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let server = Server::start(picky());
    browser.go(&server.metrics, "/ensemble/pair");
    browser.says("#status", "live");
    // What stands there at first can be sent.
    send(&browser);
    assert_eq!(cells(&browser), json!(["1"]));
    for (written, expected) in [
        ("[2, 3.5]", json!(["2", "3.5"])),
        ("7, 8", json!(["7", "8"])),
        ("4", json!(["4"])),
        ("ones", json!(["1"])),
    ] {
        fill(&browser, "#try textarea", written);
        send(&browser);
        assert_eq!(cells(&browser), expected, "{written}");
    }
    // The time of each step: below, and beside its card in the graph.
    let steps = "return [...document.querySelectorAll('.waterfall th')].map(it => it.textContent)";
    assert_eq!(browser.run(steps), json!(["0.same", "1.picky"]));
    let badge = browser.text("#n2 .asked text");
    assert!(badge.ends_with("µs") || badge.ends_with("ms"), "{badge}");

    fill(&browser, "#try textarea", "[-1]");
    send(&browser);
    let error = browser.text("#try-answer pre");
    assert!(error.contains("<b>no</b> & \"never\""), "{error}");
    assert!(browser.text("#try-answer .when").contains("500"));
    assert!(browser.text("#try-answer .none").contains("picky"), "the step is named");
    assert_eq!(browser.run("return document.querySelectorAll('#try b').length"), json!(0));

    // What cannot be sent is said beside its field, and nothing is sent.
    browser.says("#s-total", "6");
    for (written, said) in [
        ("", "it needs a value"),
        ("[1, \"a\"]", "FP32 has numbers"),
        ("[[1], [2, 3]]", "different lengths"),
        ("what", "this is no JSON"),
    ] {
        fill(&browser, "#try textarea", written);
        browser.click("#try [type=submit]");
        browser.says_of(
            "#try .wrong",
            &format!("it.textContent.includes({})", json!(said)),
            &json!(true),
        );
    }
    assert_eq!(server.stats("pair")["inference_stats"]["fail"]["count"], 1);
    server.is_well();
}

#[test]
fn a_request_is_copied_as_curl_and_python_and_runs_as_it_is() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let name = "it's $HOME";
    let model = native("identity", "x:BYTES[-1] -> y:BYTES[-1]");
    let server = Server::start(picky().with("text", model));
    browser.go(&server.metrics, "/model/text");
    let text = format!("{name} \\ \"two\"\nlines `id` ü🎭");
    fill(&browser, "#try textarea", &text);
    let command = copied(&browser, "curl");
    assert!(command.contains(&format!(":{}/v2/models/text/infer", server.http.0.port())));
    assert_eq!(shell(&command, ".")["outputs"][0]["data"], json!([text]), "{command}");
    send(&browser);
    assert_eq!(cells(&browser), json!([text]));

    let program = copied(&browser, "python");
    let ran = Command::new(venv::python()).args(["-c", &program]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("y [") && said.contains("two"), "{said}{errors}\n{program}");

    browser.go(&server.metrics, "/ensemble/pair");
    fill(&browser, "#try textarea", "[0.5, 2]");
    let command = copied(&browser, "curl");
    assert_eq!(shell(&command, ".")["outputs"][0]["data"], json!([0.5, 2.0]), "{command}");
    let program = copied(&browser, "python");
    let ran = Command::new(venv::python()).args(["-c", &program]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("y [0.5 2. ]"), "{said}{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_picture_is_sent_as_a_file_and_shown_with_the_boxes_that_were_found() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let server = ocr();
    browser.go(&server.metrics, "/ensemble/ocr");
    let picture = here("pipelines/ocr/images/sign_street.jpg");
    browser.press("#try [type=file]", picture.to_str().unwrap());
    browser.says_of("#try .preview img", "it.src.startsWith('data:image/jpeg')", &json!(true));
    send(&browser);
    let count = |selector: &str| {
        browser.run(&format!("return document.querySelectorAll('{selector}').length"))
    };
    assert_eq!(count("#try-answer .boxes polygon"), json!(3));
    assert_eq!(count("#try-answer .boxes image"), json!(1));
    let words = "return [...document.querySelectorAll('.boxes text')].map(it => it.textContent)";
    assert_eq!(browser.run(words), json!(["parking", "street", "orange"]));
    // All outputs have a row for each word, and stand side by side.
    assert_eq!(count("#try-answer .answer"), json!(1));
    assert_eq!(count("#try-answer .answer tbody tr"), json!(3));
    assert_eq!(cells(&browser)[0], "parking");
    let command = copied(&browser, "curl");
    let answer = shell(&command, "pipelines/ocr/images");
    assert_eq!(answer["outputs"][0]["data"], json!(["parking", "street", "orange"]), "{command}");
}

#[test]
fn a_stream_is_shown_response_by_response_and_copied_as_what_reads_streams() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let source = "from typing import Iterator\n\n\n\
                  def predict(text: str) -> Iterator[str]:\n    yield from text.split()\n";
    let repository = Repository::new();
    repository.write_file("words/1/model.py", source);
    let server = Server::start(repository);
    browser.go(&server.metrics, "/model/words");
    fill(&browser, "#try textarea", "how <b>can</b> \"you\" be");
    send(&browser);
    let events = "return [...document.querySelectorAll('#try-answer .events li')]\
                  .map(it => JSON.parse(it.textContent).output)";
    assert_eq!(browser.run(events), json!(["how", "<b>can</b>", "\"you\"", "be"]));
    let read = |program: &str, command: &str| {
        let ran = Command::new(program).args(["-c", command]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(said.contains("<b>can</b>") && said.matches("output").count() == 4, "{said}");
    };
    read("sh", &copied(&browser, "curl"));
    read(venv::python().to_str().unwrap(), &copied(&browser, "python"));
}

/// The owner of a name can lead it to any address: a page of his would get the token of ours.
#[test]
fn a_page_that_is_opened_by_a_name_that_may_be_anybodys_may_only_be_read() {
    let flags = ["--http-allow-origin=https://models.example,http://other.example:8002"];
    let server = Server::with(picky(), &flags);
    let body = floats(&[("x", &[1.0])]).to_string();
    let path = "/v2/models/pair/versions/1/infer";
    for (host, is_known) in [
        ("evil.example", false),
        ("evil.example:8002", false),
        ("models.example:8002", false),
        ("models.example", true),
        ("other.example:8002", true),
        ("localhost:8002", true),
        ("[::1]:8002", true),
    ] {
        for page in ["/", "/model/half", "/ensemble/pair", "/model/gone"] {
            let page = server.metrics.send("GET", page, &[("Host", host)], b"").text();
            let token = token_of(&page);
            assert_eq!(token.len(), if is_known { 32 } else { 0 }, "{host}");
            let headers = [("Host", host), ("Troupe-Page-Token", token)];
            let answer = server.metrics.send("POST", path, &headers, body.as_bytes());
            match is_known {
                true => assert_eq!(answer.numbers("y"), [1.0]),
                false => answer.refuses(403, "open it by an IP address"),
            }
        }
    }
}

#[test]
fn only_the_page_is_answered_where_the_page_asks() {
    let server = Server::with(picky(), &["--http-restricted-api=inference:key=hunter2"]);
    let token = token(&server);
    let body = floats(&[("x", &[1.0])]).to_string();
    let path = "/v2/models/pair/versions/1/infer";
    let ask =
        |headers: &[(&str, &str)]| server.metrics.send("POST", path, headers, body.as_bytes());
    let page = ("Troupe-Page-Token", token.as_str());
    ask(&[]).refuses(403, "expecting header 'key'");
    ask(&[page]).refuses(403, "expecting header 'key'");
    ask(&[("Key", "hunter2")]).refuses(403, "this address answers the page of this server only");
    let guessed = [("Key", "hunter2"), ("Troupe-Page-Token", &token[1..])];
    ask(&guessed).refuses(403, "this address answers the page of this server only");
    assert_eq!(ask(&[page, ("Key", "hunter2")]).numbers("y"), [1.0]);
    assert_eq!(server.metrics.get(path).status, 403);
    let without = Server::with(picky(), &["--allow-dashboard=false"]);
    assert_eq!(without.metrics.send("POST", path, &[page], body.as_bytes()).status, 404);
    // The form asks for the header, and sends it.
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    browser.go(&server.metrics, "/ensemble/pair");
    send(&browser);
    assert!(browser.text("#try-answer").contains("This API is restricted"));
    browser.press("#try-header", "hunter2");
    send(&browser);
    assert_eq!(cells(&browser), json!(["1"]));
}

#[test]
fn names_and_answers_of_strangers_are_text() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let name = "<img/src=x/onerror=alert(1)>\"'&";
    let escaped = name.replace('"', "\\\"");
    let shape = format!("{escaped}:BYTES[-1] -> {escaped}:BYTES[-1]");
    let server = Server::start(Repository::of([("evil", native("identity", &shape))]));
    browser.go(&server.metrics, "/model/evil");
    let markup = "</textarea><script>window.ran = 1</script><b onclick=x>";
    fill(&browser, "#try textarea", markup);
    send(&browser);
    assert_eq!(cells(&browser), json!([markup]));
    assert!(browser.text("#try-answer thead").contains(name));
    let strange =
        "return [window.ran, document.querySelectorAll('#try img, #try b, #try script').length]";
    assert_eq!(browser.run(strange), json!([null, 0]));
    let command = copied(&browser, "curl");
    assert_eq!(shell(&command, ".")["outputs"][0]["data"], json!([markup]), "{command}");
}

#[test]
fn the_reason_of_a_failed_load_has_its_lines() {
    let code = "raise ValueError('first\\n\\tsecond')";
    let model = crate::support::python("x:FP32[1] -> y:FP32[1]", code);
    let server = Server::lenient(Repository::of([("broken", model)]));
    for path in ["/", "/model/broken"] {
        let page = server.metrics.get(path).text();
        assert!(page.contains("first\n    second"), "{page}");
        assert!(!page.contains('\u{fffd}'), "{page}");
    }
}
