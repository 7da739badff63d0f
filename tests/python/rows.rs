//! Rows of Python models' answers: other ones than those of the request are told and counted.

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, at_once,
    http::{floats, input},
    models::{ensemble, python},
};

const FLOATS: &str = "x:FP32[1] -> y:FP32[1]";

fn rows(values: &[f32]) -> Value {
    json!({"inputs": [input("x", "FP32", &[values.len() as i64, 1], values.to_vec())]})
}

/// Takes batches of two requests; `answer` makes of `x`, the rows of one request, and `all`, those
/// of the batch, what the request is answered with.
fn pairs(answer: &str) -> Model {
    let model = python(
        FLOATS,
        &format!(
            "
        class TritonPythonModel:
            def execute(self, requests):
                parts = [pb_utils.get_input_tensor_by_name(it, 'x').as_numpy() for it in requests]
                all = np.concatenate(parts)
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', {answer})]) for x in parts]"
        ),
    );
    model.batch(4).with("dynamic_batching { max_queue_delay_microseconds: 60000000 }")
}

/// Answers without waiting for others.
fn alone(answer: &str) -> Model {
    let Model { config, source, .. } = pairs(answer);
    let config = config.replace("60000000", "0");
    Model { source, ..Model::of(config) }
}

fn unexpected(server: &Server, model: &str) -> Option<f64> {
    server.metric("troupe_unexpected_rows_total", &[&format!("model=\"{model}\"")])
}

#[test]
fn other_rows_than_those_of_the_request_are_told_once_and_counted() {
    let server = Server::start(Repository::of([("m", alone("np.concatenate([x, x[:1]])"))]));
    for _ in 0..3 {
        assert_eq!(server.infer("m", &rows(&[1.0, 2.0])).numbers("y"), [1.0, 2.0, 1.0]);
    }
    let line = server.logged("the answer to a request of 2 rows has 3 rows in output 'y'");
    assert!(line.starts_with('W') && line.contains("model=m version=1 instance=m_0"), "{line}");
    assert_eq!(server.log().matches("has 3 rows").count(), 1, "{}", server.log());
    assert_eq!(unexpected(&server, "m"), Some(3.0));
    // One picture has any number of words.
    assert_eq!(server.infer("m", &rows(&[1.0])).numbers("y"), [1.0, 1.0]);
    assert_eq!(unexpected(&server, "m"), Some(3.0));
}

#[test]
fn a_batch_that_is_given_to_each_of_its_requests_is_told_and_counted() {
    let server = Server::start(Repository::of([("m", pairs("all"))]));
    let answers = at_once(4, |it| server.infer("m", &rows(&[it as f32])));
    for answer in answers {
        assert_eq!(answer.numbers("y").len(), 4);
    }
    let line = server.logged("all requests of a batch of 4 rows were answered with 4 rows");
    assert!(line.starts_with('W') && line.contains("output 'y'"), "{line}");
    assert_eq!(unexpected(&server, "m"), Some(4.0));
}

#[test]
fn steps_behind_one_with_other_rows_answer_each_client_with_its_own() {
    let good = python(
        FLOATS,
        "
        class TritonPythonModel:
            def execute(self, requests):
                parts = [pb_utils.get_input_tensor_by_name(it, 'x').as_numpy() for it in requests]
                ends = np.cumsum([len(it) for it in parts])[:-1]
                found = np.split(10 * np.concatenate(parts), ends)
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', it)]) for it in found]",
    );
    let both = "x:FP32[1] -> z:FP32[1]";
    let steps = ["more: x=x -> y=m", "good: x=m -> y=z"];
    let server = Server::start(Repository::of([
        ("more", alone("np.concatenate([x, x[:1]])")),
        ("good", good.batch(16).with("dynamic_batching { max_queue_delay_microseconds: 1000 }")),
        ("both", ensemble(both, &steps).batch(4)),
    ]));
    let answers = at_once(8, |it| server.infer("both", &rows(&[it as f32, 100.0])));
    for (it, answer) in answers.iter().enumerate() {
        assert_eq!(answer.numbers("z"), [10.0 * it as f64, 1000.0, 10.0 * it as f64]);
    }
    assert_eq!(unexpected(&server, "more"), Some(8.0));
    assert_eq!(unexpected(&server, "both"), Some(0.0));
    server.is_well();
}

#[test]
fn answers_without_the_batch_dimension_have_no_rows() {
    let single = python(
        "x:FP32[-1] -> y:FP32[-1]",
        "
        class TritonPythonModel:
            def execute(self, requests):
                x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x[:1])])]",
    );
    let server = Server::start(Repository::of([("m", single)]));
    assert_eq!(server.infer("m", &floats(&[("x", &[1.0, 2.0])])).numbers("y"), [1.0]);
    assert_eq!(unexpected(&server, "m"), Some(0.0));
    assert!(!server.log().contains("rows in output"), "{}", server.log());
}
