//! What the graph, the page and the metrics show of sequence slots and of answers that are kept.

use serde_json::{Value, json};

use super::models::{PATIENT, direct_with, request, sum};
use crate::support::{
    Repository, Server, ensemble,
    http::{finish, floats},
    native, until,
};

/// The step of this number, as the graph of `model` has it.
fn step(server: &Server, model: &str, step: usize) -> Value {
    let graph = server.http.get(&format!("/v2/models/{model}/graph")).ok().json();
    let nodes = graph["nodes"].as_array().unwrap();
    nodes.iter().filter(|it| it["kind"] == "step").nth(step).unwrap().clone()
}

#[test]
fn slots_are_shown_while_sequences_have_them_and_wait_for_them() {
    let all = ensemble("INPUT:INT32[1] -> OUTPUT:INT32[1]", &["m: INPUT=INPUT -> OUTPUT=OUTPUT"]);
    let repository = Repository::of([("m", direct_with(2, PATIENT)), ("all", all.batch(2))]);
    let server = Server::start(repository);
    let shown = |expected: [u64; 3]| {
        let [slots, taken, backlog] = expected;
        let numbers = json!({ "slots": slots, "taken": taken, "backlog": backlog });
        until(&format!("{numbers}"), || {
            ["m", "all"].iter().all(|it| step(&server, it, 0)["sequences"] == numbers)
        });
        let metric = |name, more: &str| server.metric(name, &["model=\"m\"", more]).unwrap();
        assert_eq!(metric("troupe_sequence_slots", "state=\"taken\""), taken as f64);
        assert_eq!(metric("troupe_sequence_slots", "state=\"free\""), (slots - taken) as f64);
        assert_eq!(metric("troupe_sequence_backlog", "model=\"m\""), backlog as f64);
    };
    shown([2, 0, 0]);
    assert_eq!(sum(&server, "all", 1, ("+", 1)), 1.);
    assert_eq!(sum(&server, "m", 2, ("+", 1)), 1.);
    shown([2, 2, 0]);
    let waits = server.http.start("m", &request(3, "+", 5));
    shown([2, 2, 1]);
    let now = step(&server, "all", 0);
    assert_eq!(now["health"], "saturated");
    assert_eq!(now["scheduling"], json!(["sequences: direct, 2 slots each"]));
    assert_eq!(sum(&server, "m", 2, ("!", 1)), 2.);
    assert_eq!(finish(waits).numbers("OUTPUT"), [5.]);
    shown([2, 2, 0]);
    assert_eq!(sum(&server, "m", 3, ("!", 1)), 6.);
    assert_eq!(sum(&server, "all", 1, ("!", 1)), 2.);
    shown([2, 0, 0]);
    server.is_well();
}

#[test]
fn a_step_shows_what_the_cache_did_for_it() {
    let tensors = "x:FP32[2] -> y:FP32[2]";
    let kept = native("identity", tensors).with("response_cache { enable: true }");
    let all = ensemble("x:FP32[2] -> z:FP32[2]", &["kept: x=x -> y=y", "plain: x=y -> y=z"]);
    let repository =
        Repository::of([("kept", kept), ("plain", native("identity", tensors)), ("all", all)]);
    let server = Server::with(repository, &["--cache-config=local,size=1048576"]);
    for number in [1., 2., 1., 1., 1.] {
        let answer = server.infer("all", &floats(&[("x", &[number, 0.])]));
        assert_eq!(answer.numbers("z"), [f64::from(number), 0.]);
    }
    let cache = json!({ "hit_rate": 0.6, "hits": 3, "misses": 2, "coalesced": 0 });
    let [first, second] = [0, 1].map(|it| step(&server, "all", it));
    assert_eq!((&first["cache"], second.get("cache")), (&cache, None));
    assert_eq!(first["scheduling"], json!(["answers are kept"]));
}
