//! Which Python runs a model: the given one, one of its own, or one that is made for it.

use std::fs;

use serde_json::json;

use crate::support::{Repository, Server, http::floats, models::execute, python};

/// Two models that want the same package.
fn needing_a_package() -> Repository {
    let model = python(
        "x:FP32[-1] -> y:BYTES[-1]",
        "
        import iniconfig

        class TritonPythonModel:
            def execute(self, requests):
                y = np.array([iniconfig.__name__.encode()], dtype=np.object_)
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]) for _ in requests]
        ",
    );
    let repository = Repository::of([("m", model.clone()), ("same", model)]);
    for name in ["m", "same"] {
        repository.write_file(&format!("{name}/1/requirements.txt"), "iniconfig\n");
    }
    repository
}

#[test]
fn requirements_beside_a_model_are_provided_once_and_visibly() {
    let repository = needing_a_package();
    let ended = Server::fails(&repository, &["--provision=never"]);
    assert_eq!(ended.code, Some(1));
    for text in ["ModuleNotFoundError: No module named 'iniconfig'", "pip install"] {
        assert!(ended.output.contains(text), "no `{text}` in\n{}", ended.output);
    }
    let cache = repository.beside("cache");
    fs::create_dir(&cache).unwrap();
    let envs = [("XDG_CACHE_HOME", cache.as_path()), ("HOME", cache.as_path())];
    let server = Server::launch(repository, &[], &envs);
    server.ready();
    for name in ["m", "same"] {
        let said = server.infer(name, &floats(&[("x", &[1.0])])).output("y");
        assert_eq!(said, json!(["iniconfig"]));
    }
    let environments: Vec<_> = fs::read_dir(cache.join("troupe")).unwrap().collect();
    assert!(!environments.is_empty(), "nothing is kept in the cache");
    assert!(server.log().contains("requirements.txt"), "{}", server.log());
}

#[test]
fn an_interpreter_of_the_models_own_runs_it() {
    let python = crate::support::venv::python();
    let model = execute(
        "x:FP32[-1] -> y:BYTES[-1]",
        "
        import sys
        y = np.array([sys.prefix.encode()], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)])]",
    );
    let home = python.parent().unwrap().parent().unwrap();
    let mut repository = Repository::new();
    for (name, path) in [("venv", home), ("interpreter", python)] {
        let model = model.clone().parameter("EXECUTION_ENV_PATH", path.to_str().unwrap());
        repository.write(name, &model);
    }
    let server = Server::with(repository, &["--backend-config=python,python=python3"]);
    for name in ["venv", "interpreter"] {
        let said = server.infer(name, &floats(&[("x", &[1.0])])).output("y");
        assert_eq!(said, json!([home.to_str().unwrap()]), "{name}");
    }
}

#[test]
fn the_models_of_this_project_need_nothing_installed_by_hand() {
    let repository = Repository::new();
    let cache = repository.beside("cache");
    fs::create_dir(&cache).unwrap();
    let envs = [("XDG_CACHE_HOME", cache.as_path()), ("HOME", cache.as_path())];
    let models = format!("--model-repository={}/model_repository", env!("CARGO_MANIFEST_DIR"));
    let server = Server::launch(repository, &[&models], &envs);
    server.ready();
    let a = floats(&[("INPUT0", &[5.0, 6.0, 7.0, 8.0]), ("INPUT1", &[1.0, 2.0, 3.0, 4.0])]);
    assert_eq!(server.infer("ensemble", &a).numbers("OUTPUT"), [24.0, 32.0, 40.0, 48.0]);
}
