//! `troupe new`: a folder that works at once, and what it says when it cannot make one.

use std::{fs, path::Path};

use crate::support::{Model, Repository, Server, native, server::Ended, troupe, venv};

fn new(repository: &Repository, arguments: &[&str]) -> Ended {
    let folder = format!("--model-repository={}", repository.models().display());
    let python = format!("--backend-config=python,python={}", venv::python().display());
    troupe(&[&["new"], arguments, &[&folder, &python]].concat())
}

/// Runs the line that was printed last on a server of this repository.
#[track_caller]
fn run_infer_line(server: &Server, printed: &str) -> String {
    let line = printed.lines().last().unwrap().trim();
    let words = line.strip_prefix("troupe ").unwrap_or_else(|| panic!("{printed}"));
    let words: Vec<String> = shell_words(words);
    let url = server.grpc.to_string();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(["--url", &url]);
    let ended = troupe(&words);
    assert_eq!(ended.code, Some(0), "{line}: {}", ended.output);
    ended.output
}

/// Words as a shell makes them of blanks and single quotes.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            _ => words.last_mut().unwrap().push(letter),
        }
    }
    words
}

#[test]
fn a_new_python_model_answers_at_once_and_an_ensemble_of_two_as_well() {
    let mut repository = Repository::new();
    repository.needs_python_too();
    let shout = new(&repository, &["model", "shout"]);
    assert_eq!(shout.code, Some(0), "{}", shout.output);
    let echo = new(&repository, &["model", "echo"]);
    assert_eq!(echo.code, Some(0), "{}", echo.output);
    let both = new(&repository, &["ensemble", "both", "shout", "echo"]);
    assert_eq!(both.code, Some(0), "{}", both.output);
    assert!(both.output.contains("shout.output -> echo.text"), "{}", both.output);
    assert!(both.output.contains(", by type"), "{}", both.output);
    let pipeline = "from troupe import models, pipeline\n\n\n@pipeline\ndef traced(text: str) -> \
                    dict:\n    return {\"loud\": models.shout(text=text).output}\n";
    repository.write_file("traced/pipeline.py", pipeline);
    let over = new(&repository, &["ensemble", "over", "traced", "echo"]);
    assert!(over.output.contains("traced.loud -> echo.text"), "{}", over.output);
    let chain = new(&repository, &["pipeline", "chain", "over", "shout", "echo"]);
    assert!(chain.output.contains("-> shout.text"), "{}", chain.output);
    assert!(!chain.output.contains("to mend"), "{}", chain.output);
    assert!(repository.models().join("chain/pipeline.py").is_file());
    let server = Server::start(repository);
    let answer = run_infer_line(&server, &over.output);
    assert!(answer.contains("HELLO"), "{answer}");
    let answer = run_infer_line(&server, &shout.output);
    assert!(answer.contains("HELLO"), "{answer}");
    let answer = run_infer_line(&server, &chain.output);
    assert!(answer.contains("HELLO"), "{answer}");
    let answer = run_infer_line(&server, &both.output);
    assert!(answer.contains("HELLO"), "{answer}");
}

#[test]
fn a_new_onnx_model_is_a_copy_with_a_config_that_was_read_off_it() {
    let mut repository = Repository::new();
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("model_repository/text_recognition/1/model.onnx");
    let ended = new(&repository, &["model", "words", "--onnx", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let config = fs::read_to_string(repository.models().join("words/config.pbtxt")).unwrap();
    for line in [
        "max_batch_size: 4",
        r#"{ name: "input.1" data_type: TYPE_FP32 dims: [ 1, 32, 100 ] }"#,
        r#"{ name: "308" data_type: TYPE_FP32 dims: [ 26, 37 ] }"#,
    ] {
        assert!(config.contains(line), "no `{line}` in\n{config}");
    }
    repository.needs_onnxruntime_too();
    let server = Server::start(repository);
    assert_eq!(server.http.get("/v2/models/words/ready").status, 200);
}

#[test]
fn every_op_becomes_a_model_that_loads_and_an_ensemble_of_them_is_wired() {
    let repository = Repository::new();
    let list = new(&repository, &["model", "x", "--op", "?"]);
    assert_eq!(list.code, Some(1), "{}", list.output);
    let ops = list.output.lines().skip(1).filter_map(|it| it.split_whitespace().next());
    let ops: Vec<&str> = ops.collect();
    assert!(ops.contains(&"image_decode"), "{}", list.output);
    for op in &ops {
        let ended = new(&repository, &["model", op, "--op", op]);
        assert_eq!(ended.code, Some(0), "{}", ended.output);
    }
    let steps = ["ensemble", "picture", "image_decode", "resize_normalize"];
    let ended = new(&repository, &steps);
    let wires = ended.output.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        wires.contains("image_decode.image -> resize_normalize.image UINT8"),
        "{}",
        ended.output
    );
    let ended = new(&repository, &["ensemble", "numbers", "add_sub", "mul"]);
    assert!(ended.output.contains("in their order: the types are the same"), "{}", ended.output);
    let server = Server::start(repository);
    for model in ops.iter().chain(&["picture", "numbers"]) {
        assert_eq!(server.http.get(&format!("/v2/models/{model}/ready")).status, 200, "{model}");
    }
    let answer = run_infer_line(&server, &ended.output);
    assert!(answer.contains("product"), "{answer}");
}

#[test]
fn what_cannot_be_made_is_said_and_leaves_nothing_behind() {
    let repository = Repository::new()
        .with("a", native("identity", "x:FP32[4] -> y:FP32[4]"))
        .with("b", native("identity", "y:FP32[8] -> z:FP32[8]"))
        .with("broken", Model::of("backend: \"native\"\ninptu { }\n"));
    for (arguments, expected) in [
        (&["model", "a"][..], "is there already and stays as it is"),
        (&["model", "../up"], "`../up` cannot be a model's name"),
        (&["model", "n", "--op", "image_decod"], "there is no op `image_decod`; the ops are:"),
        (&["model", "n", "--onnx", "no/such.onnx"], "no/such.onnx: there is no such file"),
        (&["model", "n", "--onnx", "Cargo.toml"], "--onnx Cargo.toml: "),
        (&["ensemble", "n", "a", "clff"], "there is no model `clff` in "),
        (&["ensemble", "n", "broken"], "Did you mean `input`"),
        (&["ensemble", "n"], "<STEP>"),
    ] {
        let ended = new(&repository, arguments);
        assert_eq!(ended.code, Some(1), "{arguments:?}: {}", ended.output);
        assert!(ended.output.contains(expected), "no `{expected}` in {}", ended.output);
        assert!(!repository.models().join("n").exists(), "{arguments:?}");
    }
    let ended = new(&repository, &["ensemble", "open", "a", "b"]);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let note = "note: `y` of `b` (FP32 [8]) is an input of the ensemble: `y` of `a` (FP32 [4]) has \
                its name, but another type or shape";
    assert!(ended.output.contains(note), "{}", ended.output);
    let checked = troupe(&["check", repository.models().to_str().unwrap()]);
    assert!(!checked.output.contains("open/"), "{}", checked.output);
}
