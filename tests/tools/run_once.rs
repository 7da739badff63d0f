//! `troupe run-once`: a model or an ensemble, loaded for one request, without ports.

use crate::{
    python::plain::plain_models,
    support::{Repository, ensemble, native, troupe, venv},
};

fn run_once(repository: &Repository, model: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let folder = repository.models().join(model).display().to_string();
    let python = format!("--backend-config=python,python={}", venv::python().display());
    let ended = troupe(&[&["run-once", &folder, &python], arguments].concat());
    (ended.code, ended.output)
}

#[test]
fn a_model_or_an_ensemble_answers_one_request_of_the_command_line() {
    let twice = ensemble(
        "a:FP32[2] b:FP32[2] -> y:FP32[2]",
        &["add_sub: a=a b=b -> sum=s", "same: x=s -> y=y"],
    );
    let add_sub = native("add_sub", "a:FP32[2] b:FP32[2] -> sum:FP32[2] difference:FP32[2]");
    let repository = Repository::of(plain_models())
        .with("add_sub", add_sub)
        .with("same", native("identity", "x:FP32[2] -> y:FP32[2]"))
        .with("twice", twice);
    let table = "+---+----------+\n|   | y        |\n|   | FP32 [2] |\n+---+----------+\n\
                 | 0 | 4.0      |\n| 1 | 6.0      |\n+---+----------+\n";
    let answer = run_once(&repository, "twice", &["-i", "a=[1, 2]", "-i", "b=[3, 4]"]);
    assert_eq!(answer, (Some(0), table.to_owned()));
    let (code, output) = run_once(&repository, "upper", &["-i", "hello", "--json"]);
    assert!(code == Some(0) && output.contains("HELLO"), "{output}");
    let (code, output) = run_once(&repository, "add_sub", &["-i", "c=[1, 2]"]);
    assert_eq!(code, Some(1));
    assert!(output.ends_with("those of `add_sub` are `a`, `b`\n"), "{output}");
    repository.write_file("upper/1/model.py", "def predict(text) -> str: ...\n");
    let (code, output) = run_once(&repository, "upper", &["-i", "hello"]);
    assert_eq!(code, Some(1));
    assert!(output.contains("parameter `text` of `predict` has no type hint"), "{output}");
    let (code, output) = run_once(&repository, "upper/1/model.py", &["-i", "hello"]);
    assert_eq!(code, Some(1));
    assert!(output.contains("expected a model's folder"), "{output}");
}
