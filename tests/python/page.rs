//! The page about Python models: its models and pipeline are served, its tests run, its output is true.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::json;

use super::pipelines::words;
use crate::support::{Model, Server, troupe, venv};

const PAGE: &str = include_str!("../../pipelines/reference/python_models.md");

/// The blocks of a language, in order.
fn blocks(language: &str) -> Vec<&'static str> {
    let parts = PAGE.split("```").skip(1).step_by(2);
    parts.filter_map(|it| it.strip_prefix(language)?.strip_prefix('\n')).collect()
}

/// The block with this text.
fn block(text: &str) -> &'static str {
    blocks("python").into_iter().find(|it| it.contains(text)).expect(text)
}

#[test]
fn the_models_of_the_page_are_served_and_its_tests_pass() {
    let mut repository = words();
    for (name, text) in [
        ("shout", "+ \"!\""),
        ("label", "NamedTuple"),
        ("rows", "max_batch_size=32"),
        ("words", "AsyncIterator"),
    ] {
        repository.write(name, &Model { source: Some(block(text).to_owned()), ..Model::of("") });
    }
    repository.write_file("story/pipeline.py", block("@pipeline"));
    let python = format!("--backend-config=python,python={}", venv::python().display());

    let console = blocks("console")[0];
    let (command, expected) = console.split_once('\n').unwrap();
    let folder = repository.models().join("shout").display().to_string();
    assert_eq!(command, "$ troupe run-once models/shout --input 'text=good morning'");
    let ended = troupe(&["run-once", &folder, "--input", "text=good morning", &python]);
    assert_eq!(ended.output, expected);

    // The page's paths are those of the folder that the tests run in.
    let tests =
        block("troupe.testing.load").replace("serve(\"models\")", "serve(\"models\", flags=FLAGS)");
    let tests = format!("FLAGS = [{python:?}]\n{tests}");
    let output = Command::new(venv::python())
        .args(["-c", &tests])
        .current_dir(repository.beside(""))
        .env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("src/python"))
        .env("TROUPE_BIN", env!("CARGO_BIN_EXE_troupe"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let unread = fs::read_dir(repository.models()).unwrap().count();
    assert_eq!(unread, 9, "models");

    let server = Server::start(repository);
    let rows = json!({"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 16],
        "data": vec![1.0; 16]}]});
    assert_eq!(server.infer("rows", &rows).numbers("output"), [16.0, -16.0]);
    let stream = server.http.post("/v2/models/words/generate_stream", r#"{"text": "a b"}"#);
    assert_eq!(stream.ok().text().matches("data: ").count(), 2);
}
