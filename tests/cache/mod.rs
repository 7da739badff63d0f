//! The response cache: what is kept, for whom, how long, and where.

use serde_json::{Value, json};

use crate::support::{Model, Server, http::rows, models::execute};

pub(crate) mod flags;
pub(crate) mod hits;
pub(crate) mod policies;
pub(crate) mod redis;

/// In the server's memory.
const LOCAL: &str = "--cache-config=local,size=1048576";

/// Answers `y`, the how manieth execution this is, from 1 on, and `z`, a parameter called `p`.
fn counting() -> Model {
    execute(
        "x:FP32[-1] -> y:FP32[1] z:FP32[1]",
        "
        answers = []
        for it in requests:
            self.count = getattr(self, 'count', 0) + 1
            p = json.loads(it.parameters()).get('p', 0)
            tensors = [('y', self.count), ('z', p)]
            answers.append(pb_utils.InferenceResponse([
                pb_utils.Tensor(name, np.full((1, 1), value, np.float32)) for name, value in tensors
            ]))
        return answers",
    )
    .batch(4)
}

/// The same, its answers kept; `more` is in its `response_cache`.
fn cached(more: &str) -> Model {
    counting().with(format!("response_cache {{ enable: true {more} }}"))
}

fn request(values: &[f32]) -> Value {
    rows(&[("x", values)])
}

fn with(mut request: Value, key: &str, value: Value) -> Value {
    request[key] = value;
    request
}

/// The number of the execution that answered.
#[track_caller]
fn execution(server: &Server, model: &str, request: &Value) -> f64 {
    server.infer(model, request).numbers("y")[0]
}

/// A value of the metrics that has no labels.
fn gauge(server: &Server, name: &str) -> Option<f64> {
    let text = server.metrics.get("/metrics").ok().text();
    let line = text.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix(' '));
    line.map(|it| it.parse().unwrap())
}

/// Hits and misses of a model, as the statistics say.
fn hits_and_misses(server: &Server, model: &str) -> (u64, u64) {
    let stats = server.stats(model)["inference_stats"].take();
    let count = |name: &str| stats[name]["count"].as_u64().unwrap();
    assert_eq!(count("compute_infer"), count("success") - count("cache_hit"));
    (count("cache_hit"), count("cache_miss"))
}

fn parameters(value: i64) -> Value {
    json!({ "p": value })
}
