//! `troupe check` and `troupe graph`: what can be said of a repository without loading anything.

use std::{collections::BTreeSet, os::unix::fs::symlink};

use crate::support::{
    Model, Repository, Server, ensemble,
    models::{execute, python},
    native,
    server::Ended,
    troupe, venv,
};

fn check(repository: &Repository) -> Ended {
    troupe(&["check", repository.models().to_str().unwrap()])
}

fn story() -> Repository {
    Repository::new()
        .with("add_sub", native("add_sub", "a:FP32[4] b:FP32[4] -> sum:FP32[4] difference:FP32[4]"))
        .with("mul", native("mul", "x:FP32[4] y:FP32[4] -> z:FP32[4]"))
        .with(
            "e",
            ensemble(
                "INPUT0:FP32[4] INPUT1:FP32[4] -> OUTPUT:FP32[4]",
                &["add_sub: a=INPUT0 b=INPUT1 -> sum=s difference=d", "mul: x=s y=d -> z=OUTPUT"],
            ),
        )
}

#[test]
fn a_good_repository_has_nothing_to_say_of() {
    let ended = check(&story());
    assert_eq!(ended.code, Some(0), "{}", ended.output);
}

#[test]
fn the_repositories_of_this_project_are_good() {
    for folder in ["", "/pipelines/ocr_python", "/pipelines/text_generation"] {
        let repository = format!("{}{folder}/model_repository", env!("CARGO_MANIFEST_DIR"));
        let ended = troupe(&["check", &repository]);
        assert_eq!(ended.code, Some(0), "{repository}: {}", ended.output);
    }
}

#[test]
fn everything_wrong_in_every_model_is_said_with_its_line() {
    let repository = story()
        .with(
            "typo",
            Model::of(
                "backend: \"native\"\ninptu { name: \"x\" }\nmax_batch_size: 1\nmax_batch: 2\n",
            ),
        )
        .with(
            "many",
            Model::of(
                "backend: \"native\"\nmax_batch_size: -1\ninput { name: \"x\" dims: [1] }\noutput \
                 { data_type: TYPE_FP32 dims: [0] }\ndynamic_batching { preferred_batch_size: [9] \
                 }\n",
            ),
        )
        .with("named", native("mul", "x:FP32[4] y:FP32[4] -> z:FP32[4]").with("name: \"other\""))
        .with(
            "wrong",
            ensemble("A:FP32[4] -> Z:FP32[4]", &["id: x=A -> y=m", "mul: x=m y=n -> z=Z"]),
        )
        .with("alone", ensemble("A:FP32[4] -> Z:FP32[4]", &["nobody: x=A -> y=Z"]))
        .with("unlike", ensemble("A:INT32[4] -> Z:FP32[4]", &["mul: x=A y=A -> z=Z"]));
    let ended = check(&repository);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    for (place, text) in [
        ("typo/config.pbtxt:2:", "inptu"),
        ("typo/config.pbtxt:2:", "did you mean `input`"),
        ("many/config.pbtxt:2:", "'max_batch_size' must be non-negative value for many"),
        ("many/config.pbtxt:3:", "model input 'x' must specify 'data_type'"),
        ("many/config.pbtxt:4:", "must specify 'name'"),
        (
            "many/config.pbtxt:5:",
            "dynamic batching preferred size must be <= max batch size for many",
        ),
        ("named/config.pbtxt", "unexpected directory name 'named' for model 'other'"),
        (
            "alone/config.pbtxt:",
            "ensemble alone contains models that are not available or ambiguous: nobody",
        ),
        ("unlike/config.pbtxt", "ensemble tensor A: inconsistent data type: TYPE_INT32"),
        ("wrong/config.pbtxt:", "output 'Z' for ensemble 'wrong' is not written"),
    ] {
        let found = ended
            .output
            .lines()
            .any(|it| it.contains(place) && it.to_lowercase().contains(&text.to_lowercase()));
        assert!(found, "no `{text}` at {place} in\n{}", ended.output);
    }
}

#[test]
fn nothing_is_loaded() {
    let repository = Repository::new();
    let loaded = repository.beside("loaded");
    let source = format!(
        "open('{}', 'w').close()\n\n\nclass TritonPythonModel:\n    def execute(self, requests):\n        \
         return []\n",
        loaded.display()
    );
    let model = python("x:FP32[1] -> y:FP32[1]", &source);
    let ended = check(&repository.with("m", model));
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    assert!(!loaded.exists());
}

#[test]
fn a_repository_that_is_not_there_is_a_problem() {
    let ended = troupe(&["check", "no/such/folder"]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(ended.output.contains("no/such/folder"), "{}", ended.output);
}

#[test]
fn a_graph_shows_steps_and_tensors() {
    let repository = story();
    let folder = format!("--model-repository={}", repository.models().display());
    for (format, begin) in [("dot", "digraph"), ("svg", "<svg")] {
        let ended = troupe(&["graph", "e", &folder, "--format", format]);
        assert_eq!(ended.code, Some(0), "{}", ended.output);
        assert!(ended.output.contains(begin), "{}", ended.output);
        for name in ["add_sub", "mul", "INPUT0", "INPUT1", "OUTPUT"] {
            assert!(ended.output.contains(name), "no {name} in\n{}", ended.output);
        }
    }
    let ended = troupe(&["graph", "nobody", &folder]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(ended.output.contains("nobody"), "{}", ended.output);
}

#[test]
fn the_picture_in_pipelines_is_the_one_that_is_drawn() {
    let folder = concat!("--model-repository=", env!("CARGO_MANIFEST_DIR"), "/model_repository");
    let ended = troupe(&["graph", "ensemble", folder, "--format", "svg"]);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let pictures = concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/add_sub_mul");
    let kept = std::fs::read_dir(pictures).unwrap().filter_map(|it| {
        let path = it.unwrap().path();
        let is_svg = path.extension().is_some_and(|it| it == "svg");
        is_svg.then(|| std::fs::read_to_string(path).unwrap())
    });
    assert!(kept.collect::<Vec<_>>().iter().any(|it| it.trim() == ended.output.trim()));
}

/// Every `(place, text)` is in one line of what was said.
#[track_caller]
fn says(ended: &Ended, expected: &[(&str, &str)]) {
    for (place, text) in expected {
        let found = ended.output.lines().any(|it| it.contains(place) && it.contains(text));
        assert!(found, "no `{text}` at {place} in\n{}", ended.output);
    }
}

#[test]
fn the_files_of_models_are_looked_at_as_a_load_would() {
    let sane = "x:FP32[-1] -> y:FP32[-1]";
    let broken = python(sane, "class TritonPythonModel:\n    def execute(self, requests)\n");
    let absent =
        python(sane, "import no_such_module_anywhere\n\n\nclass TritonPythonModel:\n    pass\n");
    let class = || python(sane, "class TritonPythonModel:\n    pass\n");
    let repository = Repository::new()
        .with("broken", broken)
        .with("absent", absent)
        .with("no_source", Model { source: None, ..python(sane, "") })
        .with("no_version", python(sane, "").versions(&[]))
        .with(
            "silent",
            Model { config: String::new(), ..python(sane, "class TritonPythonModel:\n    pass\n") },
        )
        .with("dangling", native("identity", sane))
        .with("batchless", native("identity", "x:FP32[16] -> y:FP32[16]"))
        .with("rows", ensemble("A:FP32[16] -> Z:FP32[16]", &["batchless: x=A -> y=Z"]).batch(8))
        .with("guess", ensemble("A:FP32[16] -> Z:FP32[16]", &["batchles: x=A -> y=Z"]))
        .with("keys", ensemble("A:FP32[16] -> Z:FP32[16]", &["batchless: y=A -> yy=Z"]))
        .with("values", Model::of("input { name: \"x\" data_type: TYPE_BYTES dims: [1] }"))
        .with("named_onnx", Model::of(""))
        .with("lots", class().parameter("MEMORY_LIMIT_BYTES", "lots"))
        .with("typo", class().parameter("EXECUTE_TIMOUT_MS", "5"))
        .with("misplaced", Model::of("").versions(&[]))
        .with(
            "plain",
            Model { config: String::new(), ..python(sane, "def predict(x: str) -> str: return x") },
        )
        .with("unsure", ensemble("A:STRING[1] -> Z:STRING[1]", &["plain: y=A -> output=Z"]));
    repository.write_file("no_source/1/models.py", "");
    repository.write_file("named_onnx/1/clf.onnx", "");
    repository.write_file("misplaced/model.py", "");
    repository.remove("dangling/config.pbtxt");
    symlink("nowhere.pbtxt", repository.models().join("dangling/config.pbtxt")).unwrap();
    symlink("elsewhere", repository.models().join("moved")).unwrap();
    symlink("nothing", repository.models().join("batchless/2")).unwrap();
    let ended = check(&repository);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    says(
        &ended,
        &[
            ("warning: ", "moved' is a link to 'elsewhere', which does not exist"),
            ("warning: ", "batchless/2' is a link to 'nothing', which does not exist"),
            ("broken/1/model.py:10:1: ", "SyntaxError: expected ':': def execute(self, requests)"),
            ("absent/1/model.py:9:1: ", "find the module 'no_such_module_anywhere': list it in a"),
            ("no_source/config.pbtxt", "no_source/1' has 'models.py', expected 'model.py'"),
            ("no_version/config.pbtxt", "no_version/1' and put model.py into it"),
            (
                "warning: ",
                "model 'silent' has no inputs and no outputs, so every request to it fails",
            ),
            ("dangling/config.pbtxt", "is a link to 'nowhere.pbtxt', which does not exist"),
            ("warning: ", "ensemble rows allows batches of up to 8 rows, but a request with more"),
            ("guess/config.pbtxt:6:", "ambiguous: batchles, did you mean `batchless`?"),
            ("keys/config.pbtxt:8:", "non-existing input y in model batchless (its inputs: x)"),
            ("keys/config.pbtxt:9:", "non-existing output yy in model batchless"),
            ("values/config.pbtxt:1:", "Did you mean `TYPE_STRING`?"),
            ("/named_onnx: ", "has 'clf.onnx', expected 'model.onnx'."),
            ("lots/config.pbtxt", "'MEMORY_LIMIT_BYTES' of model 'lots' is 'lots', expected a"),
            (
                "warning: ",
                "'EXECUTE_TIMOUT_MS' of model 'typo' has no effect, did you mean `EXECUTE",
            ),
            ("/misplaced: ", "misplaced/model.py' to '"),
            ("warning: ", "ensemble unsure: inputs and outputs of 'plain' are known only once"),
        ],
    );
}

#[test]
fn onnx_models_without_a_config_are_read_off_their_files() {
    let repository = Repository::new()
        .with_onnx("add_sub_fp32")
        .with("before", native("identity", "x:FP64[16] -> y:FP64[16]").batch(4))
        .with(
            "e",
            ensemble(
                "A:FP64[16] B:FP32[16] -> Z:FP32[8]",
                &["before: x=A -> y=m", "add_sub_fp32: INPUT0=m INPUT1=B -> OUTPUT0=Z"],
            )
            .batch(4),
        );
    repository.remove("add_sub_fp32/config.pbtxt");
    let ended = check(&repository);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    says(
        &ended,
        &[
            (
                "e/config.pbtxt",
                "inconsistent data type: TYPE_FP64 is inferred from model before while TYPE_FP32 is",
            ),
            ("e/config.pbtxt", "inconsistent shape: [-1,8] is inferred from model e while [-1,16]"),
        ],
    );
}

#[test]
fn with_load_everything_is_loaded_once_and_the_code_says_how_that_went() {
    let good = "return [pb_utils.InferenceResponse([]) for _ in requests]";
    let load = |source: &str| {
        let model = python("x:FP32[1] -> y:FP32[1]", source);
        let repository = Repository::new()
            .with("good", execute("x:FP32[1] -> y:FP32[1]", good))
            .with("m", model);
        troupe(&["check", "--load", repository.models().to_str().unwrap()])
    };
    let class = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n";
    let ended = load(class);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    assert!(ended.output.contains("no problems, and all models load"), "{}", ended.output);
    assert!(!ended.output.contains("+--"), "tables of a server's start: {}", ended.output);
    // Nothing is left to compare then.
    let repository = Repository::new()
        .with("up", plain("def predict(x: str) -> str:\n    return x\n"))
        .with("e", ensemble("A:BYTES[1] -> Z:BYTES[1]", &["up: x=A -> output=Z"]));
    let models = repository.models().to_str().unwrap().to_owned();
    let warns = |it: &str| it.contains("'up' are known only once their code has run");
    let ended = troupe(&["check", &models]);
    assert!(ended.output.contains("no problems, 1 warning") && warns(&ended.output));
    let ended = troupe(&["check", "--load", &models]);
    let is_clean = ended.output.contains("no problems, and all models load");
    assert!(is_clean && !warns(&ended.output), "{}", ended.output);
    repository.write_file("broken/config.pbtxt", "nonsense");
    let ended = troupe(&["check", "--load", &models]);
    assert!(
        ended.output.contains("nothing was loaded") && warns(&ended.output),
        "{}",
        ended.output
    );
    let ended = load(&format!("{class}\n    def initialize(self, args):\n        1 / 0\n"));
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    says(&ended, &[("'m' did not load: ", "ZeroDivisionError: division by zero")]);
}

/// A Python model without a config.
fn plain(source: &str) -> Model {
    Model { source: Some(source.to_owned()), ..Model::of("") }
}

/// One model in a folder for each mistake, beside good ones that look alike.
fn mistakes() -> Repository {
    let same = "def predict(x: str) -> str:\n    return x\n";
    let class = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n";
    let tensors = "x:FP32[1] -> y:FP32[1]";
    let with = |text: &str| plain(same).with(text);
    let step = |model: &str| {
        ensemble("A:FP32[1] -> Z:FP32[1]", &[format!("{model}: x=A -> y=Z").as_str()])
    };
    let repository = Repository::new()
        .with("good", native("identity", tensors))
        .with("good_class", plain(class))
        .with("good_import", plain(&format!("import os, sys\nsys.path.append(os.path.dirname(__file__) + '/lib')\nimport moved\n{same}")))
        .with("good_beside", plain(&format!("import beside\n{same}")))
        .with("good_inherited", plain("import beside\nclass TritonPythonModel(beside.Base):\n    pass\n"))
        .with("good_marked", plain("from troupe import model as the\n@the(max_batch_size=2)\ndef f(x: list[str]) -> list[str]:\n    return x\n"))
        .with("flow", plain("from troupe import pipeline\n@pipeline\ndef predict(x: str):\n    return {}\n"))
        .with("no_module", plain(&format!("import no_such_module_anywhere\n{same}")))
        .with("no_name", plain("class TritonPythonModle:\n    def execute(self, requests):\n        pass\n"))
        .with("no_execute", plain("class TritonPythonModel:\n    pass\n"))
        .with("no_hint", plain("def predict(x) -> str:\n    return x\n"))
        .with("no_result", plain("class Model:\n    def predict(self, x: str):\n        return x\n"))
        .with("no_colon", plain("def predict(x: str) -> str\n    return x\n"))
        .with("two", plain("import troupe\n@troupe.model\ndef f(x: str) -> str:\n    pass\n@troupe.model\ndef g(x: str) -> str:\n    pass\n"))
        .with("nothing", plain("\n"))
        .with("no_environment", with("").parameter("EXECUTION_ENV_PATH", "/no/such/env.tar.gz"))
        .with("no_number", with("").parameter("MAX_CONCURRENT_EXECUTIONS", "many"))
        .with("no_version", Model { versions: Vec::new(), ..native("identity", tensors) })
        .with("no_op", native("no_such_op", tensors))
        .with("other_name", native("identity", tensors).with("name: \"another\""))
        .with("no_step", step("no_such_model"))
        .with("no_input", step("good_class"));
    repository
        .write_file("flow_beside/model.py", "@pipeline\ndef predict(x: str):\n    return {}\n");
    repository.write_file("good_beside/1/beside.py", "");
    repository.write_file("good_import/1/lib/moved.py", "");
    repository.write_file(
        "good_inherited/beside.py",
        "class Base:\n    def execute(self, requests):\n        return []\n",
    );
    repository
}

/// Models whose names are in lines like this.
fn named(output: &str, name_of: impl Fn(&str) -> Option<&str>) -> BTreeSet<String> {
    output.lines().filter_map(name_of).map(str::to_owned).collect()
}

#[test]
fn check_finds_a_problem_in_the_models_that_do_not_load_and_in_no_other() {
    let repository = mistakes();
    let models = repository.models();
    let folder = format!("{}/", models.display());
    let python = format!("--backend-config=python,python={}", venv::python().display());
    let checked = troupe(&["check", &python, models.to_str().unwrap()]);
    let problems =
        named(&checked.output, |line| line.strip_prefix(&folder)?.split(['/', ':']).next());
    let started = Server::fails(&repository, &[]);
    // Rows of the table at start: name, version, status.
    let failed = named(&started.output, |line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.split('|').map(str::trim).collect();
        let [name, _, status, ""] = cells[..] else { return None };
        (!name.is_empty() && status != "Status" && status != "READY").then_some(name)
    });
    let codes = (checked.code, started.code);
    assert_eq!((problems, codes), (failed, (Some(1), Some(1))), "{}", checked.output);
    for (place, text) in [
        ("/no_module/1/model.py:1:", "does not find the module 'no_such_module_anywhere'"),
        ("/no_name/1/model.py:1:", "`TritonPythonModle` has an `execute`: name it `TritonPython"),
        ("/no_execute/1/model.py:1:", "does not implement `execute` method"),
        ("/no_hint/1/model.py:1:", "parameter `x` of `predict` has no type hint"),
        ("/flow/1/model.py:3:", "`predict` is a pipeline, whose file is pipeline.py in the"),
        ("/flow_beside: ", "rename '"),
        ("/no_result/1/model.py:2:", "`predict` has no type hint for its result"),
        ("/no_colon/1/model.py:1:", "SyntaxError: expected ':'"),
        ("/two/1/model.py:6:", "one model a file, but `f`, `g` are marked"),
        ("/nothing/1/model.py: ", "nothing in this file is a model"),
        ("/no_environment/config.pbtxt: ", "env.tar.gz' of model 'no_environment' does not exist"),
        ("/no_number/config.pbtxt: ", "'many', expected a number from 1 to"),
        ("/no_input/config.pbtxt:", "mapping to non-existing input x in model good_class"),
    ] {
        says(&checked, &[(place, text)]);
    }
}

#[test]
fn what_check_says_last_counts_problems_and_warnings() {
    let class = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n";
    let repository = Repository::new().with("silent", plain(class));
    let ended = check(&repository);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let last = ended.output.lines().last();
    assert_eq!(last, Some("no problems, 1 warning"), "{}", ended.output);
    says(&ended, &[("/silent: ", "model 'silent' has no inputs and no outputs")]);
}
