//! Pipelines in Python: traced at load into an ensemble, no Python in the path of requests.

use serde_json::{Value, json};

use super::plain::plain;
use crate::support::{Model, Repository, Server, models::undent, troupe, venv};

/// Models of words: each takes or gives a list of any length.
pub(crate) fn words() -> Repository {
    let split = "
        def predict(text: str) -> list[str]:
            return text.split()";
    let upper = "
        def predict(words: list[str]) -> list[str]:
            return [it.upper() for it in words]";
    let count = "
        from typing import NamedTuple

        class Counts(NamedTuple):
            words: int
            letters: int

        def predict(words: list[str]) -> Counts:
            return Counts(len(words), sum(map(len, words)))";
    let batched = "
        from troupe import model, Array

        @model(max_batch_size=8)
        def predict(x: Array['FP32', 2]) -> Array['FP32', 2]:
            return x + 1";
    Repository::of([
        ("split", plain(split)),
        ("upper", plain(upper)),
        ("count", plain(count)),
        ("plus-one", plain(batched)),
    ])
}

const STORY: &str = "
    from troupe import pipeline, models

    @pipeline
    def story(text: str) -> dict:
        words = models.split(text=text)
        return {'loud': models.upper(words=words), 'letters': models.count(words=words.output).letters}";

const TWICE: &str = "
    from troupe import Array, models, pipeline

    @pipeline
    def twice(x: Array['FP32', 2]) -> Array['FP32', 2]:
        for _ in range(2):
            x = models['plus-one'](x=x)['output']
        return x";

fn write(repository: &Repository, name: &str, source: &str) {
    repository.write_file(&format!("{name}/pipeline.py"), undent(source).trim_start());
}

fn request(name: &str, datatype: &str, shape: &[usize], data: Value) -> Value {
    json!({"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]})
}

fn text(text: &str) -> Value {
    request("text", "BYTES", &[1], json!([text]))
}

#[test]
fn a_pipeline_in_python_is_an_ensemble_and_reloads_when_its_file_changes() {
    let repository = words();
    write(&repository, "story", STORY);
    write(&repository, "twice", TWICE);
    let beside = "parameters { key: \"by\" value { string_value: \"me\" } }\n\
        model_warmup { name: \"w\" batch_size: 1 inputs { key: \"x\" value { data_type: TYPE_FP32 \
        dims: 2 zero_data: true } } }\n";
    repository.write_file("twice/config.pbtxt", beside);
    let flags = ["--model-control-mode=explicit", "--load-model=story", "--load-model=twice"];
    let server = Server::with(repository, &flags);
    let answer = server.infer("story", &text("how can you be")).ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!(["HOW", "CAN", "YOU", "BE"]));
    assert_eq!(answer["outputs"][1]["data"], json!([11]));

    let config = server.http.get("/v2/models/story/config").ok().json();
    let steps = config["ensemble_scheduling"]["step"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|it| it["model_name"].as_str().unwrap()).collect();
    assert_eq!(names, ["split", "upper", "count"]);
    assert_eq!(config["input"][0]["data_type"], "TYPE_STRING");
    assert_eq!(config["output"][1]["data_type"], "TYPE_INT64");

    // Steps that take batches make a pipeline that takes them.
    let batch = request("x", "FP32", &[3, 2], json!([0, 1, 2, 3, 4, 5]));
    let answer = server.infer("twice", &batch);
    assert_eq!(answer.numbers("output"), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);

    let config = server.http.get("/v2/models/twice/config").ok().json();
    assert_eq!(config["parameters"]["by"]["string_value"], "me");
    assert_eq!(config["model_warmup"][0]["name"], "w");

    let quiet = STORY.replace("models.upper(words=words)", "words");
    write(&server.repository, "story", &quiet);
    server.load("story").ok();
    let answer = server.infer("story", &text("how can")).ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!(["how", "can"]));
    write(&server.repository, "story", &STORY.replace("split", "spilt"));
    let answer = server.load("story");
    assert!(answer.status == 400 && answer.text().contains("spilt"), "{}", answer.text());
    // What served goes on serving.
    server.infer("story", &text("how can")).ok();
    server.is_well();
}

/// Name, body of a pipeline with the input `text`, and what is said.
const NO_GRAPHS: &[(&str, &str, &str)] = &[
    (
        "truth",
        "if text:\n        pass",
        "`if`, `while`, `and`, `or` or `not` needs the value of input `text`",
    ),
    (
        "loop",
        "words = [it for it in models.split(text=text)]",
        "a loop, or taking it apart, needs the value of the result",
    ),
    (
        "sum",
        "x = models.split(text=text).output + 1",
        "arithmetic needs the value of output `output` of model 'split'",
    ),
    ("method", "x = text.upper()", "input `text` is a tensor and has no `upper`"),
    ("positional", "return models.split(text)", "inputs of model 'split' are given by name"),
    (
        "constant",
        "return models.split(text='a')",
        "input `text` of model 'split' is str 'a', expected an input of the pipeline",
    ),
    (
        "keyword",
        "return models.split(txt=text)",
        "model 'split' has no input `txt`, did you mean `text`?; its inputs are `text`",
    ),
    (
        "output",
        "return models.count(words=models.split(text=text)).word",
        "model 'count' has no output `word`, did you mean `words`?",
    ),
    (
        "which",
        "return models.count(words=models.split(text=text))",
        "model 'count' has the outputs `words`, `letters`: say which",
    ),
    (
        "unused",
        "a = models.split(text=text)\n    return {'b': models.split(text=text)}",
        "nobody uses the result of model 'split'",
    ),
    (
        "type",
        "return models.upper(words=models.split(text=text)), 1",
        "returned tuple, expected a dict",
    ),
    ("raises", "return models.split(text=1 / 0)", "ZeroDivisionError: division by zero"),
    (
        "misspelled",
        "return {'it': models.split(text=text).outptu}",
        "model 'split' has no output `outptu`, did you mean `output`?",
    ),
    ("endless", "while True: pass", "the pipeline has not returned after 5 s"),
];

#[test]
fn what_is_no_graph_is_refused_with_its_line() {
    let repository = words();
    for (name, body, _) in NO_GRAPHS {
        let head = "from troupe import pipeline, models\n\n@pipeline\ndef it(text: str):\n    ";
        repository.write_file(&format!("{name}/pipeline.py"), format!("{head}{body}\n"));
    }
    let wrong_type = TWICE.replace("'FP32', 2]) ->", "'INT64', 2]) ->");
    write(&repository, "hint", &wrong_type);
    write(&repository, "nobody", "import troupe");
    write(&repository, "both", STORY);
    repository.write_file("both/config.pbtxt", "input { name: \"text\" }\n");
    write(&repository, "missing", &STORY.replace("models.split", "models.spilt"));
    let server = Server::lenient(repository);
    for (name, _, expected) in NO_GRAPHS {
        let state = server.state(name);
        let place = format!("{name}/pipeline.py");
        assert!(state.contains(expected) && state.contains(&place), "{name}: {state}");
    }
    for (name, expected) in [
        ("truth", "truth/pipeline.py:5:1)"),
        (
            "hint",
            "the hint of `x` is Array[\"INT64\", 2], which is TYPE_INT64, but the input `x` of model 'plus-one' is TYPE_FP32",
        ),
        ("endless", "endless/pipeline.py:5:1)"),
        ("nobody", "nothing is marked with @pipeline"),
        ("both", "'input' is what "),
        ("both", "both/config.pbtxt:1:1"),
        ("missing", "spilt"),
        ("missing", "missing/pipeline.py:5"),
    ] {
        let state = server.state(name);
        assert!(state.contains(expected), "{name}: {state}");
    }
}

#[test]
fn compile_prints_the_config_of_a_pipeline_and_graph_and_check_see_it() {
    let repository = words();
    write(&repository, "story", STORY);
    write(&repository, "twice", TWICE);
    let folder = repository.models().display().to_string();
    let python = format!("--backend-config=python,python={}", venv::python().display());
    let compile = |file: &str| troupe(&["compile", &format!("{folder}/{file}"), &python]);
    let compiled = compile("twice/pipeline.py");
    let expected = "platform: \"ensemble\"\nmax_batch_size: 8\ninput {\n  name: \"x\"\n  \
        data_type: TYPE_FP32\n  dims: [ 2 ]\n}\noutput {\n  name: \"output\"\n  data_type: TYPE_FP32\n  \
        dims: [ 2 ]\n}\nensemble_scheduling {\n  step {\n    model_name: \"plus-one\"\n    \
        model_version: -1\n    input_map { key: \"x\" value: \"x\" }\n    \
        output_map { key: \"output\" value: \"plus-one_output\" }\n  }\n  step {\n    \
        model_name: \"plus-one\"\n    model_version: -1\n    \
        input_map { key: \"x\" value: \"plus-one_output\" }\n    \
        output_map { key: \"output\" value: \"output\" }\n  }\n}\n";
    assert_eq!((compiled.output.as_str(), compiled.code), (expected, Some(0)));
    // What is printed is a config that serves.
    let story = compile("story").output;
    let ensemble = Model::of(story);
    let mut repository = repository;
    repository.write("compiled", &ensemble);
    repository.write_file("broken/pipeline.py", "from troupe import *\nif True\n");
    let graph = troupe(&["graph", "compiled", "--model-repository", &folder, "--format=mermaid"]);
    assert!(graph.output.contains("upper"), "{}", graph.output);
    let compiled = compile("broken/pipeline.py");
    assert_eq!(compiled.code, Some(1));
    assert!(compiled.output.contains("SyntaxError"), "{}", compiled.output);
    repository.remove("broken");
    let server = Server::start(repository);
    let answer = server.infer("compiled", &text("how can")).ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!(["HOW", "CAN"]));
}
