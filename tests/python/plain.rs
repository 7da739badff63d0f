//! Plain functions and classes as models: no `TritonPythonModel`, and no config.

use serde_json::{Value, json};

use crate::support::{Model, Repository, Server, at_once, models::undent};

/// A model without a config.
pub(crate) fn plain(source: &str) -> Model {
    let source = undent(source).trim_start().to_owned();
    Model { source: Some(source), ..Model::of("") }
}

const TICKS: &str = "
        import asyncio
        from typing import AsyncIterator, NamedTuple

        class Tick(NamedTuple):
            number: int
            even: bool

        async def predict(count: int) -> AsyncIterator[Tick]:
            for it in range(count):
                await asyncio.sleep(0)
                yield Tick(it, it % 2 == 0)";

/// What tests ask here, and real clients in `tests/clients/test_plain.py`.
pub(crate) fn plain_models() -> Vec<(&'static str, Model)> {
    // As many rows as the batch has, beside the sum of each row.
    let sums = r#"
        import numpy as np
        from troupe import Array, model

        @model(max_batch_size=8, max_queue_delay_ms=60_000)
        def sums(features: Array["FP32", 4]) -> Array["FP32", 2]:
            rows = np.full(len(features), len(features), np.float32)
            return np.stack([features.sum(axis=1), rows], axis=1)"#;
    let sentiment = r#"
        from dataclasses import dataclass
        from typing import List
        from troupe import model

        @dataclass
        class Result:
            label: List[str]
            score: List[float]

        @model(max_batch_size=8, instances=2)
        class Sentiment:
            def __init__(self, config: dict):
                self.word = config["parameters"].get("word", "good")

            def predict(self, text: List[str]) -> Result:
                labels = ["yes" if self.word in it else "no" for it in text]
                return Result(labels, [len(it) for it in text])"#;
    let words = "
        from typing import Iterator

        def predict(text: str) -> Iterator[str]:
            for word in text.split():
                if word == 'stop':
                    raise ValueError('no more')
                yield word";
    let optional = "
        from __future__ import annotations
        from typing import Optional, TypedDict
        import numpy as np
        from troupe import Array

        class Scaled(TypedDict):
            y: Array[np.float32]
            name: bytes

        def predict(x: Array['float32', -1], scale: float = 2.0, name: Optional[str] = None) -> Scaled:
            return {'y': x * np.float32(scale), 'name': (name or 'nobody').encode()}";
    let waits = "
        import asyncio

        class Model:
            def __init__(self):
                self.inside, self.all_are_here = 0, asyncio.Event()

            async def predict(self, x: int) -> int:
                self.inside += 1
                if self.inside == 8:
                    self.all_are_here.set()
                await self.all_are_here.wait()
                return x + 1";
    vec![
        ("upper", plain(UPPER)),
        ("sums", plain(sums)),
        ("sentiment", plain(sentiment)),
        ("words", plain(words)),
        ("optional", plain(optional)),
        ("waits", plain(waits)),
        ("ticks", plain(TICKS)),
    ]
}

fn ask(inputs: &[(&str, &str, &[usize], Value)]) -> Value {
    let inputs = inputs.iter().map(|(name, datatype, shape, data)| {
        json!({"name": name, "datatype": datatype, "shape": shape, "data": data})
    });
    json!({"inputs": inputs.collect::<Vec<_>>()})
}

#[test]
fn plain_functions_and_classes_are_models() {
    let server = Server::start(Repository::of(plain_models()));
    let text = |text: &[&str], shape: &[usize]| ask(&[("text", "BYTES", shape, json!(text))]);
    let answer = server.infer("upper", &text(&["grüße"], &[1])).ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!(["GRÜSSE"]));

    // Eight clients make one call, and each gets its own rows.
    let features = |it: usize| ("features", "FP32", &[1, 4][..], json!([it, 1, 1, 1]));
    let answers = at_once(8, |it| server.infer("sums", &ask(&[features(it)])));
    for (caller, answer) in answers.iter().enumerate() {
        assert_eq!(answer.numbers("output"), [3.0 + caller as f64, 8.0]);
    }
    assert_eq!(server.executions("sums"), 1);

    let answer = server.infer("sentiment", &text(&["a good day", "bad"], &[2, 1])).ok().json();
    let config = server.http.get("/v2/models/sentiment/config").ok().json();
    assert_eq!(config["instance_group"][0]["count"], 2);
    let column = |index: usize| answer["outputs"][index]["data"].clone();
    assert_eq!((column(0), column(1)), (json!(["yes", "no"]), json!([10.0, 3.0])));

    let x = ("x", "FP32", &[2][..], json!([1.0, 2.0]));
    let scale = ("scale", "FP64", &[1][..], json!([3.0]));
    let name = ("name", "BYTES", &[1][..], json!(["me"]));
    let answer = server.infer("optional", &ask(std::slice::from_ref(&x)));
    assert_eq!(answer.numbers("y"), [2.0, 4.0]);
    let answer = server.infer("optional", &ask(&[x, scale, name]));
    assert_eq!(answer.numbers("y"), [3.0, 6.0]);
    assert_eq!(answer.json()["outputs"][1]["data"], json!(["me"]));

    // Coroutines: one worker has them all in work at once.
    let answers =
        at_once(8, |it| server.infer("waits", &ask(&[("x", "INT64", &[1], json!([it]))])));
    for (caller, answer) in answers.iter().enumerate() {
        assert_eq!(answer.numbers("output"), [1.0 + caller as f64]);
    }
    server.is_well();
}

#[test]
fn generators_are_streams_and_what_they_raise_comes_last() {
    let server = Server::start(Repository::of(plain_models()));
    let stream = |model: &str, request: &str| {
        let answer = server.http.post(&format!("/v2/models/{model}/generate_stream"), request);
        let text = answer.text();
        let events = text.split("\n\n").filter_map(|it| it.strip_prefix("data: "));
        events.map(|it| serde_json::from_str(it).unwrap()).collect::<Vec<Value>>()
    };
    let of =
        |events: &[Value], key: &str| events.iter().map(|it| it[key].clone()).collect::<Vec<_>>();
    let events = stream("words", r#"{"text": "how can you"}"#);
    assert_eq!(of(&events, "output"), ["how", "can", "you"]);
    let events = stream("words", r#"{"text": "one stop two"}"#);
    assert_eq!(events[0]["output"], "one");
    let error = events[1]["error"].as_str().unwrap();
    assert!(
        error.contains("ValueError: no more") && error.contains("model.py(6): predict"),
        "{error}"
    );
    let events = stream("ticks", r#"{"count": 3}"#);
    assert_eq!(of(&events, "number"), [0, 1, 2]);
    assert_eq!(of(&events, "even"), [true, false, true]);
    server.is_well();
}

const UPPER: &str = "
        def predict(text: str) -> str:
            return text.upper()";

const ANY_DIMS: &str = "
        import numpy as np

        def predict(x: np.typing.NDArray[np.float32]) -> np.typing.NDArray[np.float32]:
            return x";

#[test]
fn a_config_is_completed_and_one_that_contradicts_is_refused_with_both_places() {
    let batch = "
        from troupe import Array, model

        @model(max_queue_delay_ms=1, max_batch_size=4)
        def predict(x: Array['FP32', 4]) -> Array['FP32', 4]:
            return x";
    let with = |source: &str, config: &str| Model { config: config.to_owned(), ..plain(source) };
    let good =
        "parameters { key: \"a\" value { string_value: \"b\" } }\ninput { name: \"text\" }\n";
    let image = "input { name: \"x\" data_type: TYPE_FP32 dims: [ 3, -1 ] }\n\
                 output { name: \"output\" data_type: TYPE_FP32 dims: [ 3, -1 ] }\n";
    let wrong = [
        (
            "type",
            UPPER,
            "\ninput [ { name: \"text\" data_type: TYPE_INT32 dims: 1 } ]",
            "type/config.pbtxt:2 says `data_type: TYPE_INT32` of input `text`, but ",
            "model.py:1: the hint of `text` is str, which is TYPE_STRING",
        ),
        (
            "dims",
            batch,
            "max_batch_size: 4\ninput { name: \"x\" dims: 5 }",
            "dims/config.pbtxt:2 says `dims: [5]` of input `x`, but ",
            "model.py:4: the hint of `x` is Array[\"FP32\", 4], which has dims [4]",
        ),
        (
            "size",
            batch,
            "max_batch_size: 8",
            "size/config.pbtxt:1 says `max_batch_size: 8`, but ",
            "@model says max_batch_size=4",
        ),
        (
            "delay",
            batch,
            "dynamic_batching { max_queue_delay_microseconds: 7 }",
            "delay/config.pbtxt:1 says `max_queue_delay_microseconds: 7`, but ",
            "@model says max_queue_delay_ms=1",
        ),
        (
            "name",
            UPPER,
            "input { name: \"txt\" data_type: TYPE_STRING dims: 1 }",
            "name/config.pbtxt:1 has an input `txt`, but ",
            "`predict` has the parameters `text`, did you mean `text`?",
        ),
        (
            "stream",
            UPPER,
            "model_transaction_policy { decoupled: true }",
            "stream/config.pbtxt:1 says `decoupled: true`, but ",
            "write `-> Iterator[…]`",
        ),
    ];
    let mut repository =
        Repository::new().with("good", with(UPPER, good)).with("image", with(ANY_DIMS, image));
    for (name, source, config, ..) in wrong {
        repository.write(name, &with(source, config));
    }
    let server = Server::lenient(repository);
    for (name, _, _, first, second) in wrong {
        let state = server.state(name);
        assert!(state.contains(first) && state.contains(second), "{name}: {state}");
    }
    let answer = server.infer("good", &ask(&[("text", "BYTES", &[1], json!(["a"]))]));
    assert_eq!(answer.ok().json()["outputs"][0]["data"], json!(["A"]));
    let image = ask(&[("x", "FP32", &[3, 1], json!([1.0, 2.0, 3.0]))]);
    assert_eq!(server.infer("image", &image).numbers("output"), [1.0, 2.0, 3.0]);
}

#[test]
fn a_result_that_is_not_what_its_hint_says_names_the_output() {
    let model = |hint: &str, value: &str| {
        plain(&format!(
            "import numpy as np\nfrom troupe import Array, model\n\n\n@model(max_batch_size=4)\n\
             def predict(x: Array['FP32', 2]) -> {hint}:\n    return {value}\n"
        ))
    };
    let cases = [
        (
            "rows",
            "Array['FP32', 2]",
            "x[:1]",
            "has shape [1, 2], expected [2, 2]: one row for each of the 2 rows of this call",
        ),
        ("shape", "Array['FP32', 3]", "x", "has shape [2, 2], expected [2, 3]"),
        (
            "type",
            "Array['FP32', 2]",
            "x.astype(float)",
            "has data type FP64, expected FP32: write `.astype(np.float32)`",
        ),
        ("nothing", "list[str]", "None", "is None, expected a list"),
        ("strings", "list[str]", "[1, 2]", "holds int '1', expected list[str]"),
        ("numbers", "list[int]", "[0.5, 1]", "is list '[0.5, 1]', expected list[int]"),
    ];
    let server = Server::start(Repository::of(
        cases.map(|(name, hint, value, _)| (name, model(hint, value))),
    ));
    for (name, _, _, expected) in cases {
        let request = ask(&[("x", "FP32", &[2, 2], json!([1.0, 2.0, 3.0, 4.0]))]);
        let answer = server.infer(name, &request);
        let text = answer.text();
        let place = format!("{name}/1/model.py:6: output `output` of `predict` {expected}");
        assert!(answer.status == 500 && text.contains(&place), "{name}: {text}");
    }
}

#[test]
fn a_record_may_come_as_a_dict_or_a_tuple_and_what_it_lacks_is_named() {
    let source = "
        from dataclasses import dataclass

        @dataclass
        class Found:
            label: str
            score: float

        def predict(text: str, name: str = None) -> Found:
            found = {
                'dict': {'label': str(name), 'score': 1.0},
                'tuple': (str(name), 2.0),
                'scor': {'label': '', 'scor': 1.0},
            }
            return found.get(text, Found(str(name), 3.0))";
    let server = Server::start(Repository::of([("m", plain(source))]));
    let asked = |text: &str, name: Value| {
        server.http.post("/v2/models/m/generate", json!({"text": text, "name": name}).to_string())
    };
    for (text, name, expected) in [
        ("dict", json!("me"), ("me", 1.0)),
        // What is null is not given.
        ("tuple", json!(null), ("None", 2.0)),
        ("", json!("you"), ("you", 3.0)),
    ] {
        let answer = asked(text, name).ok().json();
        assert_eq!((&answer["label"], &answer["score"]), (&json!(expected.0), &json!(expected.1)));
    }
    asked("scor", json!("a")).refuses(
        500,
        "output `score` of `predict` is missing in its result (dict with `label`, `scor`), did you \
         mean `scor`?",
    );
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for verb in ["generate", "infer"] {
        let path = format!("/v2/models/m/{verb}");
        let answer = server.http.send("POST", &path, &form, b"text=x");
        answer.refuses(400, "the body must be JSON, and is a form (application/x-www-form-url");
    }
}

#[test]
fn half_precision_goes_in_and_out() {
    let half = "
        import numpy as np
        from troupe import Array, model

        @model(max_batch_size=4)
        def predict(x: Array['FP16', 2]) -> Array[np.float16, 2]:
            assert x.dtype == np.float16
            return x * np.float16(2)";
    let wide = "
        from troupe import Array

        def predict(x: Array['FP16', 2]) -> Array['FP16', 2]:
            return x.astype('float32')";
    let single = "
        import numpy as np

        def predict(x: np.float16) -> np.float16:
            return x + np.float16(1)";
    let server = Server::start(Repository::of([
        ("half", plain(half)),
        ("wide", plain(wide)),
        ("single", plain(single)),
    ]));
    // 1.5 and -2.
    let (data, doubled) = ([0x00, 0x3e, 0x00, 0xc0], [0x00, 0x42, 0x00, 0xc4]);
    let head = |shape: &[usize], size: usize| {
        json!({"inputs": [{"name": "x", "datatype": "FP16", "shape": shape,
                "parameters": {"binary_data_size": size}}],
            "outputs": [{"name": "output", "parameters": {"binary_data": true}}]})
    };
    let answer = server.http.infer_binary("half", &head(&[1, 2], 4), &[&data]);
    assert!(answer.ok().body.ends_with(&doubled), "{}", answer.text());
    let answer = server.http.infer_binary("single", &head(&[1], 2), &[&data[..2]]);
    assert!(answer.ok().body.ends_with(&[0x00, 0x41]), "{}", answer.text());
    let answer = server.http.infer_binary("wide", &head(&[2], 4), &[&data]);
    answer.refuses(500, "has data type FP32, expected FP16: write `.astype(np.float16)`");
}

#[test]
fn a_request_that_is_no_text_fails_alone() {
    let source = "
        from troupe import model

        @model(max_batch_size=2, max_queue_delay_ms=60_000)
        def predict(text: list[str]) -> list[str]:
            return text";
    let server = Server::start(Repository::of([("m", plain(source))]));
    let head = json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1],
        "parameters": {"binary_data_size": 5}}]});
    let answers = at_once(2, |it| {
        let text: &[u8] = if it == 0 { b"\x01\0\0\0a" } else { b"\x01\0\0\0\xff" };
        server.http.infer_binary("m", &head, &[text])
    });
    assert_eq!(answers[0].ok().json()["outputs"][0]["data"], json!(["a"]));
    assert_eq!(answers[1].status, 400);
    assert!(answers[1].text().contains("input 'text' holds bytes that are no UTF-8 text"));
}
