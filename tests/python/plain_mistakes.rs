//! Mistakes in plain functions and classes: each is refused with its line and what to write.

use crate::support::{Model, Repository, Server, models::ensemble};

/// Name, source below some imports in three lines, and what is said.
const CASES: &[(&str, &str, &str)] = &[
    (
        "misspelled",
        "class TritonModel:\n    def execute(self, requests): ...",
        "class `TritonModel` has an `execute`: name it `TritonPythonModel`",
    ),
    ("other_name", "def handle(x: str) -> str: ...", "model.py; mark one of `handle`"),
    (
        "instances",
        "@model(instances=0)\ndef predict(x: str) -> str: ...",
        "model.py:4: instances is 0",
    ),
    ("none", "x = 1", "expected a function `predict`, a class `Model`"),
    (
        "no_hint",
        "def predict(text) -> str: ...",
        "model.py:4: parameter `text` of `predict` has no type hint",
    ),
    (
        "no_result",
        "def predict(text: str): ...",
        "model.py:4: `predict` has no type hint for its result",
    ),
    (
        "none_result",
        "def predict(text: str) -> None: ...",
        "model.py:4: `predict` says `-> None`, and None is no output: write `-> str:`",
    ),
    (
        "flow",
        "from troupe import pipeline\n@pipeline\ndef predict(text: str): ...",
        "1/model.py: `predict` is a pipeline, whose file is pipeline.py in the model's folder: call \
          it ",
    ),
    (
        "two_lines",
        "def predict(\n    a: str,\n    b,\n) -> str: ...",
        "model.py:6: parameter `b` of `predict` has no type hint",
    ),
    ("no_inputs", "def predict() -> str: ...", "`predict` has no parameters"),
    (
        "dict",
        "def predict(a: dict) -> str: ...",
        "dict is no tensor: write Array[\"FP32\", 16], str",
    ),
    (
        "array",
        "def predict(a: np.ndarray) -> str: ...",
        "it needs a data type and dims: write Array",
    ),
    (
        "datatype",
        "def predict(a: Array['FP23', 3]) -> str: ...",
        "model.py:4: Array[\"FP23\", 3]: unknown data type 'FP23', did you mean `FP32`?",
    ),
    (
        "zero",
        "def predict(a: Array['FP32', 0]) -> str: ...",
        "expected dims that are numbers from 1 on",
    ),
    (
        "one",
        "@model(max_batch_size=4)\ndef predict(a: str) -> list[str]: ...",
        "model.py:5: `predict` is called with the rows of all requests at once (max_batch_size is 4), \
          and parameter `a: str` is one: write `a: list[str]`",
    ),
    (
        "one_result",
        "@model(max_batch_size=4)\ndef predict(a: list[str]) -> str: ...",
        "and the result is one str: write `list[str]`",
    ),
    (
        "tuple",
        "def predict(a: str) -> tuple[str, str]: ...",
        "a tuple has no names: for several outputs",
    ),
    ("any_dict", "def predict(a: str) -> dict: ...", "a dict has no fixed outputs"),
    (
        "yields",
        "def predict(a: str) -> str:\n    yield a",
        "`predict` yields: write `-> Iterator[…]`",
    ),
    (
        "stream",
        "@model(max_batch_size=2)\ndef predict(a: list[str]) -> Iterator[str]: ...",
        "answers one request at a time: leave out max_batch_size",
    ),
    ("stars", "def predict(*a: str) -> str: ...", "parameter `*a` of `predict` is no input"),
    (
        "two",
        "@model\ndef a(x: str) -> str: ...\n@model\ndef b(x: str) -> str: ...",
        "`a`, `b` are marked with @model",
    ),
    ("no_method", "class Model: ...", "class `Model` is the model, and has no method `predict"),
    (
        "size",
        "@model(max_batch_size=0)\ndef predict(a: list[str]) -> list[str]: ...",
        "model.py:4: max_batch_size is 0, expected a number from 1 on",
    ),
    (
        "keyword",
        "@model(max_batch=4)\ndef predict(a: list[str]) -> list[str]: ...",
        "unexpected keyword argument 'max_batch'",
    ),
    ("unknown", "def predict(a: 'Tensor') -> str: ...", "NameError: name 'Tensor' is not defined"),
    (
        "init",
        "class Model:\n    def __init__(self, path, size): ...\n    def predict(self, a: str) -> str: ...",
        "`__init__` of class `Model` wants `path`, `size`",
    ),
    (
        "init_path",
        "class Model:\n    def __init__(self, path): ...\n    def predict(self, a: str) -> str: ...",
        "model.py:5: `__init__` of class `Model` wants `path`, which nobody gives it: write `def \
         __init__(self, config: dict)`",
    ),
    (
        "bfloat",
        "def predict(a: Array['BF16', 3]) -> str: ...",
        "model.py:4: Array[\"BF16\", 3]: numpy has no BF16: write a `TritonPythonModel`",
    ),
    (
        "none_default",
        "def predict(a: Optional[str]) -> str: ...",
        "may be None, but has no default",
    ),
];

#[test]
fn mistakes_in_plain_models_are_refused_with_line_and_remedy() {
    let head = "from typing import *\nimport numpy as np\nfrom troupe import Array, model\n";
    let model = |source: &str| Model { source: Some(format!("{head}{source}\n")), ..Model::of("") };
    let server = Server::lenient(Repository::of(
        CASES.iter().map(|(name, source, _)| (name, model(source))),
    ));
    for (name, _, expected) in CASES {
        let state = server.state(name);
        assert!(state.contains(expected), "{name}: {state}");
        assert!(!state.contains("troupe/") || !state.contains("<troupe>"), "{name}: {state}");
    }
}

#[test]
fn an_ensemble_whose_plain_step_takes_no_batches_says_how_it_would() {
    let single =
        Model { source: Some("def predict(x: int) -> int: ...\n".into()), ..Model::of("") };
    let both = ensemble("x:INT64[1] -> y:INT64[1]", &["single: x=x -> output=y"]).batch(8);
    let server = Server::start(Repository::of([("single", single), ("both", both)]));
    let line = server.logged("can never succeed");
    let remedy = "If single is a plain function, write '@model(max_batch_size=8)' above it, and \
                  'list[…]' where a hint is a single 'str', 'int' or 'float': one for each row";
    assert!(line.starts_with('W') && line.contains(remedy), "{line}");
}
