//! Plain functions and classes of Python as models of sequences: control inputs and states.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::models::PATIENT;
use crate::support::{Answer, Model, Repository, Server, http::input, models::undent, troupe};

/// A model of this source, whose config has only a `sequence_batching`.
fn plain(source: &str, sequences: &str) -> Model {
    let source = undent(source).trim_start().to_owned();
    let config = format!("sequence_batching {{ {PATIENT} {sequences} }}\n");
    Model { source: Some(source), ..Model::of(config) }
}

const START: &str = "control_input { name: 'START' \
    control { kind: CONTROL_SEQUENCE_START bool_false_true: [false, true] } }";
const READY: &str = "control_input { name: 'READY' \
    control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }";
const SUM: &str =
    "state { input_name: 'sum' output_name: 'sum_out' data_type: TYPE_FP64 dims: [1] }";

fn corrid(dtype: &str) -> String {
    let kind = "CONTROL_SEQUENCE_CORRID";
    format!("control_input {{ name: 'CORRID' control {{ kind: {kind} data_type: {dtype} }} }}")
}

/// Its memory is its own; READY is made and not read.
fn accumulator() -> Model {
    let source = "
        class Model:
            def __init__(self):
                self.sums = {}

            def predict(self, value: int, START: bool, CORRID: int) -> int:
                if START:
                    self.sums[CORRID] = 0
                self.sums[CORRID] += value
                return self.sums[CORRID]";
    let oldest = "oldest { max_candidate_sequences: 8 }";
    plain(source, &format!("{oldest} {START} {READY} {}", corrid("TYPE_INT64")))
}

/// A sequence in each row, one more of them where a request is missing.
fn rows() -> Model {
    let source = r#"
        from typing import NamedTuple

        import numpy as np
        from troupe import Array, model

        class Answer(NamedTuple):
            total: list[int]
            who: list[str]

        @model(max_batch_size=4)
        class Rows:
            def __init__(self):
                self.sums = [0] * 4

            def predict(
                self, value: list[int], START: list[bool], READY: Array["INT32", 1], CORRID: list[str]
            ) -> Answer:
                for row, number in enumerate(value):
                    if READY[row, 0]:
                        self.sums[row] = number + (0 if START[row] else self.sums[row])
                return Answer(self.sums[:len(value)], CORRID)"#;
    plain(source, &format!("direct {{ }} {START} {READY} {}", corrid("TYPE_STRING")))
}

/// A mean, of which the server keeps sum and number.
fn mean() -> Model {
    let source = "
        from typing import NamedTuple

        class Result(NamedTuple):
            mean: float
            sum_out: float
            number_out: int

        def predict(x: float, sum: float, number: int) -> Result:
            return Result((sum + x) / (number + 1), sum + x, number + 1)";
    let number = "state { input_name: 'number' output_name: 'number_out' data_type: TYPE_INT64 \
                  dims: [1] }";
    plain(source, &format!("{SUM} {number}"))
}

/// Batches of whatever sequences there are; the state is an output too, as the config says.
fn batched() -> Model {
    let source = r#"
        from dataclasses import dataclass
        from troupe import Array, model

        @dataclass
        class Sums:
            double: Array["FP64", 1]
            sum_out: Array["FP64", 1]

        @model(max_batch_size=8)
        def predict(x: Array["FP64", 1], sum: Array["FP64", 1]) -> Sums:
            return Sums(2 * (x + sum), x + sum)"#;
    let output = "output { name: 'sum_out' data_type: TYPE_FP64 dims: [1] }";
    plain(source, &format!("oldest {{ }} {SUM}")).with(output)
}

/// The only result is the state; it grows.
fn words() -> Model {
    let source = "
        async def predict(x: str, words: list[str]) -> list[str]:
            return words + [x]";
    let none = "initial_state { name: 'none' data_type: TYPE_STRING dims: [0] zero_data: true }";
    let state = "state { input_name: 'words' output_name: 'output' data_type: TYPE_STRING";
    plain(source, &format!("{state} dims: [-1] {none} }}"))
}

fn repository() -> Repository {
    Repository::of([
        ("accumulator", accumulator()),
        ("rows", rows()),
        ("mean", mean()),
        ("batched", batched()),
        ("words", words()),
    ])
}

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(repository()));

/// `+` begins the sequence and `!` ends it.
fn ask(model: &str, id: impl Into<Value>, flags: &str, value: Value) -> Answer {
    let parameters = json!({"sequence_id": id.into(), "sequence_start": flags.contains('+'),
                            "sequence_end": flags.contains('!')});
    let (name, dtype, shape): (_, _, &[i64]) = match model {
        "accumulator" => ("value", "INT64", &[1]),
        "rows" => ("value", "INT64", &[1, 1]),
        "mean" => ("x", "FP64", &[1]),
        "batched" => ("x", "FP64", &[1, 1]),
        _ => ("x", "BYTES", &[1]),
    };
    let inputs = [input(name, dtype, shape, [value])];
    SERVER.infer(model, &json!({"parameters": parameters, "inputs": inputs}))
}

#[test]
fn parameters_named_like_control_inputs_are_given_them() {
    let ask = |id: i64, flags, value: i64| {
        ask("accumulator", id, flags, value.into()).ok().numbers("output")[0]
    };
    assert_eq!(ask(1, "+", 5), 5.);
    assert_eq!(ask(2, "+", 100), 100.);
    assert_eq!(ask(1, "", 2), 7.);
    assert_eq!(ask(2, "!", 1), 101.);
    assert_eq!(ask(1, "+!", 3), 3.);
    let metadata = SERVER.http.get("/v2/models/accumulator").ok().json();
    assert_eq!(metadata["inputs"].as_array().unwrap().len(), 1, "{metadata}");
    assert_eq!(metadata["inputs"][0]["name"], "value");
}

#[test]
fn rows_of_sequences_reach_a_batched_class_with_null_rows_among_them() {
    let total = |id: &str, flags, value: i64| {
        let answer = ask("rows", id, flags, value.into());
        assert_eq!(answer.ok().output("who"), json!([id]));
        answer.numbers("total")[0]
    };
    assert_eq!(total("a", "+", 1), 1.);
    assert_eq!(total("b", "+", 10), 10.);
    assert_eq!(total("b", "", 1), 11.);
    assert_eq!(total("a", "!", 1), 2.);
    assert_eq!(total("b", "!", 1), 12.);
}

#[test]
fn states_are_parameters_and_fields() {
    for (model, output, expected) in
        [("mean", "mean", [2., 3., 1.]), ("batched", "double", [4., 12., 2.])]
    {
        let ask = |flags, x: f64| ask(model, 7, flags, x.into()).ok().numbers(output)[0];
        // The last one begins anew.
        assert_eq!([ask("+", 2.), ask("", 4.), ask("+!", 1.)], expected, "{model}");
    }
    assert_eq!(ask("mean", 8, "+!", 1.0.into()).ok().outputs(), ["mean"]);
    let seen = ask("batched", 8, "+!", 1.0.into());
    assert_eq!(seen.ok().outputs(), ["sum_out", "double"]);
    let said = |flags, text: &str| ask("words", "w", flags, text.into()).ok().output("output");
    assert_eq!(said("+", "a"), json!(["a"]));
    assert_eq!(said("", "b"), json!(["a", "b"]));
}

/// Name, what the config has, a function, what a load says, and what a look at the file says.
const MISTAKES: &[(&str, &str, &str, &str, &str)] = &[
    (
        "control_type",
        READY,
        "def predict(x: float, READY: bool) -> float: ...",
        "says that control input `READY` is TYPE_INT32, but",
        "model.py:2:1: the hint of `READY` is bool, which is TYPE_BOOL, but the config says that \
         control input `READY` is TYPE_INT32",
    ),
    (
        "state_type",
        SUM,
        "def predict(\n    x: float,\n    sum: int) -> Result: ...",
        "model.py:8: the hint of `sum` is int, which is TYPE_INT64: write `sum: float`",
        "model.py:8:1: the hint of `sum` is int, which is TYPE_INT64, but the config says that the \
         state `sum` is TYPE_FP64",
    ),
    (
        "state_dims",
        SUM,
        "def predict(x: float, sum: Array['FP64', 2]) -> Result: ...",
        "says that the state `sum` has dims [1], but",
        "model.py:6:1: the hint of `sum` is Array['FP64', 2], which has dims [2], but the config says \
         that the state `sum` has dims [1]",
    ),
    (
        "batch",
        "} max_batch_size: 2 model_transaction_policy {",
        "@model(max_batch_size=4)\ndef predict(x: list[float]) -> list[float]: ...",
        "says `max_batch_size: 2`, but",
        "model.py:2:1: @model says max_batch_size=4, but the config says `max_batch_size: 2`",
    ),
    (
        "delay",
        "",
        "@model(max_batch_size=4, max_queue_delay_ms=1)\n\
         def predict(x: list[float]) -> list[float]: ...",
        "write `max_queue_delay_microseconds` in its `direct` or `oldest`",
        "",
    ),
    (
        "state_name",
        SUM,
        "def predict(x: float, summe: float) -> Result: ...",
        "has a state `sum`, but",
        "model.py:6:1: `predict` has no parameter `sum`, which the config has as the state",
    ),
    (
        "state_output",
        SUM,
        "def predict(x: float, sum: float) -> float: ...",
        "has a state `sum_out`, but",
        "model.py:2:1: `predict` has no output `sum_out`, which the config has as the state",
    ),
];

#[test]
fn control_inputs_and_states_that_do_not_fit_are_refused_and_found_by_a_check() {
    let imports = "from troupe import Array, model\n";
    let record = "from typing import NamedTuple\nclass Result(NamedTuple):\n    y: float\n    \
                  sum_out: float\n";
    let mut repository = Repository::new();
    for (name, sequences, source, ..) in MISTAKES {
        let head = if source.contains("Result") { record } else { "" };
        let source = format!("{imports}{head}{source}\n");
        repository = repository.with(name, plain(&source, sequences));
    }
    let found = troupe(&["check", repository.models().to_str().unwrap()]);
    assert_eq!(found.code, Some(1), "{}", found.output);
    let server = Server::lenient(repository);
    for (name, _, _, refused, checked) in MISTAKES {
        let state = server.state(name);
        assert!(state.contains(refused), "{name}: {state}");
        assert!(found.output.contains(checked), "{name}: {}", found.output);
    }
}

#[test]
fn a_check_finds_nothing_in_good_models_of_sequences() {
    let repository = repository();
    let found = troupe(&["check", repository.models().to_str().unwrap()]);
    assert_eq!(found.code, Some(0), "{}", found.output);
}
