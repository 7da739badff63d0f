//! Where ONNX Runtime comes from, what is said when it does not, and which devices models may ask
//! for.

use std::{fs, path::Path};

use crate::support::{Repository, Server, http::floats, models::execute, native, venv};

const ONNX: &str = "add_sub_fp32";

/// An ONNX model beside one that needs no library.
fn repository() -> Repository {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/onnx").join(ONNX);
    let repository = Repository::of([(
        "plain",
        native("add_sub", "a:FP32[1] b:FP32[1] -> sum:FP32[1] diff:FP32[1]"),
    )]);
    for file in ["config.pbtxt", "1/model.onnx"] {
        repository.write_file(&format!("{ONNX}/{file}"), fs::read(home.join(file)).unwrap());
    }
    repository
}

/// A server on which nothing but the flags says where the library is.
fn launch(repository: Repository, flags: &[&str]) -> Server {
    let python = venv::bare(&repository.beside("bare"));
    let python = format!("--backend-config=python,python={}", python.display());
    let flags = [flags, &["--exit-on-error=false", &python]].concat();
    Server::launch(repository, &flags, &[("ORT_DYLIB_PATH", Path::new(""))])
}

/// The ONNX model fails with these words, and the other one answers.
#[track_caller]
fn fails(flags: &[&str], expected: &[&str]) {
    let server = launch(repository(), flags);
    server.tried_all();
    let state = server.state(ONNX);
    assert!(state.starts_with("UNAVAILABLE: "), "{state}");
    for text in expected {
        assert!(state.contains(text), "no `{text}` in\n{state}");
    }
    let answer = server.infer("plain", &floats(&[("a", &[3.0]), ("b", &[1.0])]));
    assert_eq!(answer.numbers("sum"), [4.0]);
    assert_eq!(server.log().matches("panicked").count(), 0, "{}", server.log());
}

#[test]
fn a_named_library_that_is_not_there_fails_onnx_models_only() {
    fails(
        &["--backend-config=onnxruntime,library=/nonexistent/libonnxruntime.so"],
        &["onnxruntime,library: '/nonexistent/libonnxruntime.so' does not exist"],
    );
}

#[test]
fn a_named_library_that_is_none_fails_onnx_models_only() {
    let scratch = Repository::new();
    let garbage = scratch.beside("libonnxruntime.so");
    fs::write(&garbage, "garbage").unwrap();
    let flag = format!("--backend-config=onnxruntime,library={}", garbage.display());
    fails(&[&flag], &["cannot load '", "libonnxruntime.so'"]);
}

#[test]
fn without_provisioning_a_missing_library_is_told_with_what_to_do() {
    // A machine that has the library installed for all programs would not fail here.
    fails(
        &["--provision=never"],
        &[
            "no ONNX Runtime library to run the model with: ",
            "has no package onnxruntime",
            "-m pip install 'onnxruntime>=1.20,<2'`, start without --provision=never, or name one",
        ],
    );
}

#[test]
fn a_missing_library_is_fetched_once_for_all_servers() {
    let scratch = Repository::new();
    let cache = format!("--backend-config=python,cache={}", scratch.beside("cache").display());
    let servers = [repository(), repository()].map(|it| launch(it, &[&cache]));
    let making = "making ONNX Runtime environment";
    for server in &servers {
        server.tried_all();
        assert_eq!(server.state(ONNX), "READY");
    }
    let made = servers.iter().filter(|it| it.log().contains(making)).count();
    assert_eq!(made, 1, "{}\n{}", servers[0].log(), servers[1].log());
    let server = servers.iter().find(|it| it.log().contains(making)).unwrap();
    server.logged("ONNX Runtime environment made in ");
    // Only what concerns an operator is said without --log-verbose.
    assert!(!server.log().contains("onnxruntime session_state"), "{}", server.log());
}

#[test]
fn a_gpu_that_is_not_there_is_refused_by_every_backend() {
    let group = "instance_group { kind: KIND_GPU }";
    let mut repository = repository();
    repository.write("native", &native("identity", "a:FP32[1] -> b:FP32[1]").with(group));
    repository.write("python", &execute("a:FP32[1] -> b:FP32[1]", "return []").with(group));
    let path = repository.models().join(ONNX).join("config.pbtxt");
    let config = fs::read_to_string(path).unwrap();
    repository.write_file(&format!("{ONNX}/config.pbtxt"), config + group);
    let none = Path::new("");
    let server =
        Server::launch(repository, &["--exit-on-error=false"], &[("CUDA_VISIBLE_DEVICES", none)]);
    server.tried_all();
    for (model, texts) in [
        // Without a driver, and with one that has nothing to show.
        (ONNX, ["server does not support GPUs", "no GPUs are available"]),
        ("python", ["server does not support GPUs", "no GPUs are available"]),
        ("native", ["models of backend 'native' run on the CPU only"; 2]),
    ] {
        let state = server.state(model);
        let start = format!("instance group {model}_0 of model {model} has kind KIND_GPU but ");
        let is_told = texts.iter().any(|it| state.contains(&format!("{start}{it}")));
        assert!(is_told, "{state}");
    }
    assert_eq!(server.state("plain"), "READY");
}
