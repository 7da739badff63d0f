//! `troupe check` of what is no repository, no version or no model's file: it says what to do.

use crate::support::{Repository, server::troupe};

/// `check` says every one of these texts of a folder in the repository.
#[track_caller]
fn is_told(repository: &Repository, folder: &str, expected: &[&str]) {
    let path = repository.models().join(folder);
    let ended = troupe(&["check", path.to_str().unwrap()]);
    for text in expected {
        assert!(ended.output.contains(text), "expected `{text}` in {}", ended.output);
    }
}

#[test]
fn what_is_no_model_or_no_repository_is_told_with_what_to_do() {
    let repository = Repository::new();
    is_told(&repository, "", &["warning: no models in '", "`troupe new model NAME", "no problems"]);
    is_told(&repository, "nowhere", &["/nowhere': No such file", "`troupe new model NAME"]);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 12345\n";
    repository.write_file("pointer/1/model.py", pointer);
    repository.write_file("network/1/model.onnx", pointer);
    repository.write_file("letter/v1/model.py", "");
    repository.write_file("zero/01/model.py", "");
    repository.write_file("folder/1/model.py/notes.txt", "");
    std::fs::create_dir_all(repository.models().join("empty/1")).unwrap();
    std::fs::create_dir_all(repository.models().join("nothing")).unwrap();
    let expected = [
        "/pointer/1/model.py' is only a pointer to the file in Git LFS: run `git lfs pull`",
        "/network/1/model.onnx' is only a pointer to the file in Git LFS: run `git lfs pull`",
        "/letter/1'",
        "/zero/1'",
        "/folder/1/model.py': it is a folder, expected a file",
        "put a model.py or a model.onnx into '",
        "/empty/1'",
        "/nothing/1'",
        "7 problems",
    ];
    is_told(&repository, "", &expected);
    repository.write_file("other/1/model.py", "def predict(x: str) -> str:\n    return x\n");
    is_told(
        &repository,
        "other",
        &["it is the folder of a model, expected the one above, '", "1 problem"],
    );
    let above = Repository::new();
    above.write_file("models/shout/1/model.py", "def predict(x: str) -> str:\n    return x\n");
    is_told(
        &above,
        "",
        &["/models' is a repository itself, with the model 'shout': give its path"],
    );
}
