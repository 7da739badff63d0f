//! Requests copied from the form: under TLS, with a header that is asked for, with numbers of 16 bits, with
//! parameters.

use std::{fs, process::Command};

use serde_json::{Value, json};

use super::workbench::{cells, copied, fill, send};
use crate::{
    doors::tls::Encrypted,
    support::{Repository, Server, browser::Browser, native, venv},
};

/// Runs a program with these variables; what it printed.
fn ran(command: &mut Command) -> String {
    let ended = command.output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{command:?}: {errors}");
    String::from_utf8(ended.stdout).unwrap()
}

fn shell(command: &str) -> Command {
    let mut it = Command::new("sh");
    it.args(["-c", command]);
    it
}

fn python(program: &str) -> Command {
    let mut it = Command::new(venv::python());
    it.args(["-c", program]);
    it
}

#[test]
fn a_copied_request_runs_under_tls() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let encrypted = Encrypted::start(false);
    let roots = encrypted.server.repository.beside("roots.pem");
    browser.go_encrypted(&encrypted.server.metrics, "/model/identity");
    fill(&browser, "#try textarea", "[2.5]");
    send(&browser);
    browser.says("#try-answer .answer td", "2.5");
    let command = copied(&browser, "curl");
    assert!(command.contains("'https://127.0.0.1:"), "{command}");
    let said = ran(shell(&command).env("CURL_CA_BUNDLE", &roots));
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(answer["outputs"][0]["data"], json!([2.5]));
    let program = copied(&browser, "python");
    let said = ran(python(&program).env("SSL_CERT_FILE", &roots));
    assert_eq!(said.trim(), "y [2.5]");
}

#[test]
fn a_copied_request_has_the_header_that_is_asked_for() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let words = "from typing import Iterator\n\n\
                 def predict(text: str) -> Iterator[str]:\n    yield from text.split()\n";
    let repository = Repository::of([("same", native("identity", "x:FP32[-1] -> y:FP32[-1]"))]);
    repository.write_file("words/1/model.py", words);
    let server = Server::with(repository, &["--http-restricted-api=inference:key=hunter2"]);
    for (model, expected) in [("same", "1"), ("words", "text")] {
        browser.go(&server.metrics, &format!("/model/{model}"));
        browser.press("#try-header", "hunter2");
        for kind in ["curl", "python"] {
            let text = copied(&browser, kind);
            assert!(!text.contains("hunter2"), "the secret is not on the screen: {text}");
            let text = text.replace('…', "hunter2");
            let said = ran(&mut if kind == "curl" { shell(&text) } else { python(&text) });
            assert!(said.contains(expected) && !said.contains("error"), "{said} of\n{text}");
        }
    }
}

#[test]
fn numbers_of_16_bits_are_copied_as_bytes_and_many_numbers_as_one_command() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let identity = |it: &str| native("identity", &format!("x:{it}[-1] -> y:{it}[-1]"));
    let types = ["FP16", "BF16", "INT32"];
    let server = Server::start(Repository::of(types.map(|it| (it.to_lowercase(), identity(it)))));
    for (model, bytes) in [("fp16", [0x00, 0x3e, 0x00, 0xc0]), ("bf16", [0xc0, 0x3f, 0x00, 0xc0])] {
        browser.go(&server.metrics, &format!("/model/{model}"));
        fill(&browser, "#try textarea", "[1.5, -2]");
        ran(shell(&copied(&browser, "curl")).current_dir(server.repository.beside("")));
        let answer = fs::read(server.repository.beside("answer.bin")).unwrap();
        assert!(answer.ends_with(&bytes), "{}", String::from_utf8_lossy(&answer));
        let said = ran(&mut python(&copied(&browser, "python")));
        assert!(said.contains("1.5") && said.contains("-2"), "{said}");
    }
    // More than one argument of a program may be.
    browser.go(&server.metrics, "/model/int32");
    fill(&browser, "#try textarea", "random");
    fill(&browser, "#try .shape", "100000");
    let file = server.repository.beside("copied");
    fs::write(&file, copied(&browser, "curl")).unwrap();
    let said = ran(Command::new("sh").arg(&file));
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(answer["outputs"][0]["shape"], json!([100_000]));
    let numbers = answer["outputs"][0]["data"].as_array().unwrap();
    assert!(numbers.iter().any(|it| *it != json!(0)));
    let program = copied(&browser, "python") + "\nprint(answer.as_numpy('y').max())";
    let said = ran(&mut python(&program));
    let greatest: i64 = said.lines().last().unwrap().parse().unwrap();
    assert!((50..100).contains(&greatest), "{said}");
}

#[test]
fn parameters_are_sent_and_copied_and_those_of_a_sequence_stand_there() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let state = "state { input_name: 'sum' output_name: 'y' data_type: TYPE_FP32 dims: [1] }";
    let sums = native("add_sub", "x:FP32[1] -> y:FP32[1] d:FP32[1]")
        .with(format!("sequence_batching {{ {state} max_sequence_idle_microseconds: 60000000 }}"));
    let words = "from typing import Iterator\n\n\ndef predict(x: int) -> Iterator[int]:\n    \
                 yield x\n";
    let mut repository = Repository::new().with("sums", sums);
    repository.needs_python_too();
    repository.write_file("words/1/model.py", words);
    let server = Server::start(repository);
    browser.go(&server.metrics, "/model/sums");
    let sum = |x: &str| {
        fill(&browser, "#try textarea", x);
        send(&browser);
        cells(&browser)[0].clone()
    };
    assert_eq!(sum("1"), json!("1"));
    fill(&browser, "#try-parameters", r#"{"sequence_id": 1}"#);
    assert_eq!(sum("2"), json!("3"));
    // The next two requests of the sequence.
    let said: Value = serde_json::from_str(&ran(&mut shell(&copied(&browser, "curl")))).unwrap();
    assert_eq!(said["outputs"][0]["data"], json!([5.0]));
    let said = ran(&mut python(&copied(&browser, "python")));
    assert!(said.contains("y [7.]"), "{said}");
    fill(&browser, "#try-parameters", r#"{"sequence_id": 1, "mine": true}"#);
    let program = copied(&browser, "python");
    let call = r#"inputs, sequence_id=1, parameters={"mine": True})"#;
    assert!(program.contains(call), "{program}");
    fill(&browser, "#try-parameters", "[1]");
    browser.click("#try [type=submit]");
    let expression = "it.textContent.includes('expected an object')";
    browser.says_of("#try .parameters .wrong", expression, &json!(true));

    browser.go(&server.metrics, "/model/words");
    fill(&browser, "#try textarea", "1");
    fill(&browser, "#try-parameters", r#"{"mine": "it's"}"#);
    assert!(ran(&mut shell(&copied(&browser, "curl"))).contains("\"output\":1"));
}
