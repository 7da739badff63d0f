//! Kinds of tensors in the form on a model's page: what can be written, and how answers are shown.

use serde_json::{Value, json};

use super::workbench::{cells, fill, send};
use crate::{
    backends::ocr::here,
    decoupled::ensembles::repeats,
    support::{Repository, Server, browser::Browser, native},
};

fn python(sources: &[(&str, &str)]) -> Repository {
    let mut repository = Repository::new();
    repository.needs_python_too();
    for (name, source) in sources {
        repository.write_file(&format!("{name}/1/model.py"), source);
    }
    repository
}

fn all(browser: &Browser, selector: &str, expression: &str) -> Value {
    browser.run(&format!(
        "return [...document.querySelectorAll({})].map(it => {expression})",
        json!(selector)
    ))
}

/// Tries to send, and waits for the word beside the field.
fn refused(browser: &Browser, written: &str, said: &str) {
    fill(browser, "#try textarea", written);
    browser.click("#try [type=submit]");
    let expression = format!("it.textContent.includes({})", json!(said));
    browser.says_of("#try .wrong", &expression, &json!(true));
}

#[test]
fn numbers_keep_their_digits_and_those_that_do_not_fit_are_refused() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let types = ["INT8", "UINT64", "INT64", "FP16", "BF16", "FP64", "BOOL"];
    let identity = |it: &str| native("identity", &format!("x:{it}[-1] -> y:{it}[-1]"));
    let server = Server::start(Repository::of(types.map(|it| (it.to_lowercase(), identity(it)))));
    for (model, written, expected) in [
        ("int8", "[-128, 127]", json!(["-128", "127"])),
        ("uint64", "18446744073709551615", json!(["18446744073709551615"])),
        (
            "int64",
            "[9007199254740993, -9223372036854775808]",
            json!(["9007199254740993", "-9223372036854775808"]),
        ),
        (
            "fp16",
            "[1.5, 0.1, -65504, 65519, 1.00048828125, 6e-8]",
            json!(["1.5", "0.09997559", "-65504", "65504", "1", "5.960464e-8"]),
        ),
        ("bf16", "[1.5, 0.1, 1.00390625]", json!(["1.5", "0.1000977", "1"])),
        ("fp64", "[0.1234567890123456]", json!(["0.1234567890123456"])),
        ("bool", "true, false", json!(["true", "false"])),
    ] {
        browser.go(&server.metrics, &format!("/model/{model}"));
        fill(&browser, "#try textarea", written);
        send(&browser);
        assert_eq!(cells(&browser), expected, "{model}");
    }
    for (model, written, said) in [
        ("int8", "[1, 128]", "INT8 goes from -128 to 127: 128 does not fit"),
        ("uint64", "-1", "UINT64 goes from 0 to"),
        ("int64", "[1.5]", "INT64 has whole numbers, not 1.5"),
        ("int64", "[\"1\"]", "this is no JSON"),
        ("bool", "1", "BOOL has true or false, not 1"),
    ] {
        browser.go(&server.metrics, &format!("/model/{model}"));
        refused(&browser, written, said);
    }
    server.is_well();
}

#[test]
fn rows_of_a_batch_stand_below_each_other_and_too_many_are_an_error_to_read() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let model = native("identity", "x:FP32[2] -> y:FP32[2]").batch(4);
    let server = Server::start(Repository::of([("pairs", model)]));
    browser.go(&server.metrics, "/model/pairs");
    fill(&browser, "#try textarea", "[[1, 2], [3, 4.5]]");
    send(&browser);
    assert_eq!(cells(&browser), json!(["[1, 2]", "[3, 4.5]"]));
    assert!(browser.text("#try-answer thead").contains("FP32 [2,2]"));
    fill(&browser, "#try textarea", "random");
    fill(&browser, "#try .shape", "5, 2");
    send(&browser);
    let error = browser.text("#try-answer pre");
    assert!(error.contains("batch-size must be <= 4"), "{error}");
    assert!(!error.contains('{'), "it is text and no JSON: {error}");
    // What went wrong last stands below the form, beside the count of errors.
    browser.says("#s-errors", "1");
    browser.says_of("#failures pre", "it.textContent.includes('batch-size')", &json!(true));
}

#[test]
fn boxes_are_drawn_of_four_numbers_and_large_or_binary_answers_stay_small() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let boxes = "from typing import NamedTuple\n\
                 import numpy as np\nfrom troupe import Array\n\n\
                 class Found(NamedTuple):\n    boxes: Array['FP32', -1, 4]\n    labels: list[str]\n\n\
                 def predict(picture: Array['UINT8', -1]) -> Found:\n    \
                 return Found(np.array([[10, 20, 30, 40], [5, 5, 8, 9]], np.float32), ['one', '<b>two'])\n";
    let large = "from typing import NamedTuple\n\
                 import numpy as np\nfrom troupe import Array\n\n\
                 class Large(NamedTuple):\n    map: Array['FP32', -1, -1, -1, -1]\n    raw: list[bytes]\n\n\
                 def predict(n: int) -> Large:\n    \
                 return Large(np.full((1, n, n, n), np.nan, np.float32), [b'\\0\\1\\xff', b'\\xc3', b'RIFF0000WAVE'])\n";
    let server = Server::start(python(&[("boxes", boxes), ("large", large)]));
    browser.go(&server.metrics, "/model/boxes");
    let picture = here("pipelines/ocr/images/sign_street.jpg");
    browser.press("#try [type=file]", picture.to_str().unwrap());
    send(&browser);
    let corners = all(&browser, ".boxes polygon", "it.getAttribute('points')");
    assert_eq!(corners, json!(["10,20 30,20 30,40 10,40", "5,5 8,5 8,9 5,9"]));
    assert_eq!(all(&browser, ".boxes text", "it.textContent"), json!(["one", "<b>two"]));

    browser.go(&server.metrics, "/model/large");
    fill(&browser, "#try textarea", "120");
    send(&browser);
    let cells = cells(&browser);
    let cells: Vec<&str> =
        cells.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(cells[0].starts_with("[[NaN, NaN") && cells[0].len() < 1000, "{}", cells[0]);
    assert!(!cells.iter().any(|it| it.contains("undefined")), "{cells:?}");
    for text in ["3 bytes, no text: 00 01 ff", "1 bytes, no text: c3", "RIFF0000WAVE"] {
        assert!(cells.contains(&text), "no {text} in {cells:?}");
    }
    assert_eq!(all(&browser, "#try-answer img", "1"), json!([]), "a WAV file is no picture");
    assert!(browser.text("#try-answer").contains("more rows are not shown"));
    server.is_well();
}

#[test]
fn several_files_are_one_batch_and_can_be_taken_away() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let sizes = "from troupe import model\n\n\
                 @model(max_batch_size=8)\n\
                 def predict(files: list[bytes]) -> list[int]:\n    \
                 return [len(it) for it in files]\n";
    let server = Server::start(python(&[("sizes", sizes)]));
    browser.go(&server.metrics, "/model/sizes");
    let paths =
        ["street", "menu", "stop"].map(|it| here(&format!("pipelines/ocr/images/sign_{it}.jpg")));
    let joined = paths.each_ref().map(|it| it.to_str().unwrap()).join("\n");
    browser.press("#try [type=file]", &joined);
    browser.says_of("#try .preview", "it.querySelectorAll('img').length", &json!(3));
    send(&browser);
    let sizes = paths.map(|it| std::fs::metadata(it).unwrap().len().to_string());
    assert_eq!(cells(&browser), json!(sizes));
    browser.click("#try .remove");
    assert_eq!(all(&browser, "#try .preview img", "1"), json!([]));
    fill(&browser, "#try textarea", "[[\"four\"], [\"\"]]");
    send(&browser);
    assert_eq!(cells(&browser), json!(["4", "0"]));
}

#[test]
fn a_stream_without_end_is_stopped_and_one_that_fails_keeps_what_came() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let forever = "from typing import Iterator\nimport time\n\n\
                   def predict(text: str) -> Iterator[str]:\n    \
                   while True:\n        time.sleep(0.002)\n        yield text\n";
    let fails = "from typing import Iterator\n\n\
                 def predict(text: str) -> Iterator[str]:\n    \
                 yield text\n    raise ValueError('<b>enough')\n";
    let server = Server::start(python(&[("forever", forever), ("fails", fails)]));
    browser.go(&server.metrics, "/model/forever");
    browser.click("#try [type=submit]");
    // The newest ones are kept, and not all.
    browser.says_of(
        "#try-answer .events",
        "500 < it.start && it.children.length === 500",
        &json!(true),
    );
    browser.click("#try .stop");
    browser.says_of("#try-answer .none", "it.textContent.includes('stopped')", &json!(true));
    assert!(!browser.shows("#try .stop"));
    // The model is told, and works no more.
    browser.says("#s-total", "1");
    browser.says("#s-flight", "0");
    browser.go(&server.metrics, "/model/fails");
    send(&browser);
    assert_eq!(all(&browser, ".events li", "it.className"), json!(["", "failure"]));
    assert!(browser.text(".events .failure").contains("<b>enough"));
    server.is_well();
}

#[test]
fn a_decoupled_ensemble_answers_response_by_response() {
    let Some(browser) = Browser::open((1200, 1400), true) else { return };
    let floats = "x:FP32[-1] -> y:FP32[-1]";
    let chain = crate::support::ensemble(floats, &["repeats: x=x -> y=mid", "same: x=mid -> y=y"]);
    let same = native("identity", floats);
    let server =
        Server::start(Repository::of([("repeats", repeats()), ("same", same), ("chain", chain)]));
    browser.go(&server.metrics, "/ensemble/chain");
    fill(&browser, "#try textarea", "[1.5, 2, 3]");
    send(&browser);
    let values = all(&browser, ".events li", "JSON.parse(it.textContent).y");
    assert_eq!(values, json!([1.5, 2, 3]));
    assert!(browser.text("#try-answer .none").starts_with("3 responses in"));
}
