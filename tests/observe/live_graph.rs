//! The live graph: its formats over HTTP, and what it counts.

use serde_json::{Value, json};

use crate::decoupled::ensembles::repeats;
use crate::support::{
    Answer, Repository, Server, at_once, ensemble,
    http::{floats, rows},
    models::delay,
    native, python, until,
};

const CHAIN: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Fails for negative numbers.
const PICKY: &str = "
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()
                if (x < 0).any():
                    error = pb_utils.TritonError('<b>no</b> & \"never\"')
                    answers.append(pb_utils.InferenceResponse([], error))
                else:
                    answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]))
            return answers
";

pub(crate) fn picky() -> Repository {
    Repository::of([
        ("same", native("identity", CHAIN)),
        ("picky", python(CHAIN, PICKY)),
        ("pair", ensemble(CHAIN, &["same: x=x -> y=between", "picky: x=between -> y=y"])),
    ])
}

fn graph(server: &Server, model: &str) -> Value {
    server.http.get(&format!("/v2/models/{model}/graph")).ok().json()
}

fn step(graph: &Value, index: usize) -> Value {
    let id = format!("step:{index}");
    let nodes = graph["nodes"].as_array().unwrap();
    nodes.iter().find(|it| it["id"] == *id).unwrap().clone()
}

#[test]
fn a_graph_comes_in_the_format_that_is_asked_for() {
    let server = Server::start(Repository::of([
        ("same", native("identity", CHAIN)),
        ("inner", ensemble(CHAIN, &["same: x=x -> y=y"])),
        ("outer", ensemble(CHAIN, &["inner: x=x -> y=between", "same: x=between -> y=y"])),
    ]));
    let get = |path: &str, accept: &str| -> Answer {
        server.http.send("GET", &format!("/v2/models/{path}"), &[("Accept", accept)], b"")
    };
    for (path, accept, media_type, start) in [
        ("outer/graph", "*/*", "application/json", "{\"model\":\"outer\""),
        ("outer/graph", "image/svg+xml", "image/svg+xml", "<svg "),
        (
            "outer/graph",
            "text/vnd.graphviz;q=0.5, text/vnd.mermaid",
            "text/vnd.mermaid",
            "flowchart LR",
        ),
        ("outer/graph?format=dot", "image/svg+xml", "text/vnd.graphviz", "digraph \"outer\""),
        ("outer/graph?format=json", "image/svg+xml", "application/json", "{"),
        ("outer/versions/1/graph?format=svg", "", "image/svg+xml", "<svg "),
        ("same/graph?format=mermaid", "", "text/vnd.mermaid", "flowchart LR"),
    ] {
        let answer = get(path, accept);
        assert_eq!(answer.ok().header("content-type"), Some(media_type), "{path} {accept}");
        assert!(answer.text().starts_with(start), "{path}: {}", answer.text());
        assert_eq!(answer.header("vary"), Some("Accept"));
        assert!(answer.header("content-security-policy").unwrap().contains("default-src 'none'"));
    }
    let svg = get("outer/graph?format=svg", "").text();
    assert!(svg.contains("<a href=\"/v2/models/inner/versions/1/graph?format=svg\" id=\"n1\""));
    get("outer/graph?format=png", "").refuses(400, "expected one of json, svg, dot, mermaid");
    get("nobody/graph", "").refuses(404, "Request for unknown model: 'nobody' is not found");
    get("outer/versions/9/graph", "")
        .refuses(404, "Request for unknown model: 'outer' version 9 is not found");
    get("outer/versions/x/graph", "").refuses(400, "");
    assert_eq!(server.http.post("/v2/models/outer/graph", "").status, 405);
}

#[test]
fn requests_bytes_and_the_last_error_are_counted_where_they_happen() {
    let server = Server::start(picky());
    for _ in 0..5 {
        server.infer("pair", &floats(&[("x", &[1.0, 2.0, 3.0])])).ok();
    }
    for _ in 0..2 {
        server.infer("pair", &floats(&[("x", &[-1.0])])).refuses(500, "never");
    }
    let graph = graph(&server, "pair");
    let (first, second) = (step(&graph, 0), step(&graph, 1));
    let counted = |it: &Value| ["requests", "errors", "in_flight"].map(|key| it[key].clone());
    assert_eq!(json!(counted(&first)), json!([7, 0, 0]));
    assert_eq!(json!(counted(&second)), json!([7, 2, 0]));
    assert_eq!((&first["health"], &second["health"]), (&json!("working"), &json!("failing")));
    assert_eq!(second["last_error"]["text"], "<b>no</b> & \"never\"");
    assert!(first["last_error"].is_null());
    let (p50, p99) = (first["p50_us"].as_f64().unwrap(), first["p99_us"].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p99, "{p50} {p99}");
    assert_eq!(second["batch_sizes"], json!([{"size": 1, "count": 7}]));
    for node in [&first, &second] {
        assert_eq!((&node["instances"], &node["instances_ready"]), (&json!(1), &json!(1)));
    }
    let carried = |tensor: &str| {
        let edges = graph["edges"].as_array().unwrap();
        let edge = edges.iter().find(|it| it["tensor"] == tensor).unwrap();
        assert!(0.0 < edge["bytes_per_second"].as_f64().unwrap(), "{edge}");
        json!([
            edge["from"],
            edge["to"],
            edge["datatype"],
            edge["shape"],
            edge["tensors"],
            edge["bytes"]
        ])
    };
    let floats = |count: u64| count * 4;
    assert_eq!(carried("x"), json!(["input:x", "step:0", "FP32", [-1], 7, floats(17)]));
    assert_eq!(carried("between"), json!(["step:0", "step:1", "FP32", [-1], 7, floats(17)]));
    assert_eq!(carried("y"), json!(["step:1", "output:y", "FP32", [-1], 5, floats(15)]));
    assert_eq!(
        (&graph["numbers"]["requests"], &graph["numbers"]["errors"]),
        (&json!(7), &json!(2))
    );
}

#[test]
fn a_model_that_is_no_ensemble_is_one_node() {
    let server = Server::start(picky());
    server.infer("picky", &floats(&[("x", &[1.0])])).ok();
    server.infer("picky", &floats(&[("x", &[-1.0])])).refuses(500, "never");
    let graph = graph(&server, "picky");
    let kinds: Vec<_> = graph["nodes"].as_array().unwrap().iter().map(|it| &it["kind"]).collect();
    assert_eq!(json!(kinds), json!(["input", "step", "output"]));
    let node = step(&graph, 0);
    assert_eq!((&node["requests"], &node["errors"]), (&json!(2), &json!(1)));
    assert_eq!(node["last_error"]["text"], "<b>no</b> & \"never\"");
    assert!(graph["edges"].as_array().unwrap().iter().all(|it| it["bytes"].is_null()));
}

#[test]
fn what_waits_and_how_it_was_batched_is_seen() {
    let signature = "x:FP32[1] -> y:FP32[1]";
    let repository = Repository::of([
        ("slow", delay(300, signature).batch(4).with("dynamic_batching {}")),
        ("held", ensemble(signature, &["slow: x=x -> y=y"]).batch(4)),
    ]);
    let server = Server::start(repository);
    let config = server.http.get("/v2/models/held/config").ok().json();
    assert_eq!(config["max_batch_size"], 4);
    let seen = std::thread::scope(|scope| {
        let load = scope
            .spawn(|| at_once(9, |_| server.infer("held", &rows(&[("x", &[1.0])])).ok().status));
        let mut queue = 0;
        let mut flight = 0;
        until("requests that wait and requests in flight", || {
            let step = step(&graph(&server, "held"), 0);
            queue = queue.max(step["queue_depth"].as_u64().unwrap());
            flight = flight.max(step["in_flight"].as_u64().unwrap());
            load.is_finished() || (queue != 0 && flight != 0)
        });
        load.join().unwrap();
        (queue, flight)
    });
    assert!(0 < seen.0 && seen.0 <= seen.1 && seen.1 <= 9, "{seen:?}");
    let step = step(&graph(&server, "held"), 0);
    let sizes = step["batch_sizes"].as_array().unwrap();
    let rows: u64 =
        sizes.iter().map(|it| it["size"].as_u64().unwrap() * it["count"].as_u64().unwrap()).sum();
    assert_eq!((rows, &step["in_flight"], &step["queue_depth"]), (9, &json!(0), &json!(0)));
    assert!(0.0 < step["utilization"].as_f64().unwrap(), "{step}");
}

#[test]
fn a_window_that_is_full_shows_what_it_holds_back() {
    let repository = Repository::of([
        ("slow", delay(300, CHAIN)),
        ("narrow", {
            let mut narrow = ensemble(CHAIN, &["slow: x=x -> y=y"]);
            let window = "ensemble_scheduling {\n  max_inflight_requests: 1\n";
            narrow.config = narrow.config.replace("ensemble_scheduling {\n", window);
            narrow
        }),
    ]);
    let server = Server::start(repository);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            at_once(4, |_| server.infer("narrow", &floats(&[("x", &[1.0])])).ok().status)
        });
        until("three requests that are held back", || {
            let step = step(&graph(&server, "narrow"), 0);
            assert!(!load.is_finished(), "{step}");
            step["window_waiting"] == 3 && step["in_flight"] == 1
        });
        load.join().unwrap();
    });
    assert_eq!(step(&graph(&server, "narrow"), 0)["window_waiting"], 0);
}

#[test]
fn responses_of_decoupled_steps_are_counted_where_they_go() {
    let repository = Repository::of([
        ("repeats", repeats()),
        ("same", native("identity", CHAIN)),
        ("many", ensemble(CHAIN, &["repeats: x=x -> y=between", "same: x=between -> y=y"])),
    ]);
    let server = Server::start(repository);
    let answer = server.http.post("/v2/models/many/generate_stream", json!({"x": [1.0, 2.0, 3.0]}));
    assert_eq!(answer.ok().events().len(), 3);
    let graph = graph(&server, "many");
    let counted =
        |index| ["requests", "errors", "in_flight"].map(|key| step(&graph, index)[key].clone());
    assert_eq!(json!([counted(0), counted(1)]), json!([[1, 0, 0], [3, 0, 0]]));
    let edges = graph["edges"].as_array().unwrap().iter();
    let carried: Vec<_> =
        edges.map(|it| json!([it["tensor"], it["tensors"], it["bytes"]])).collect();
    assert_eq!(json!(carried), json!([["x", 1, 12], ["between", 3, 12], ["y", 3, 12]]));
}

#[test]
fn the_command_draws_mermaid_too() {
    let repository = picky();
    let folder = repository.models();
    let ended = crate::support::troupe(&[
        "graph",
        "pair",
        "--format=mermaid",
        "--model-repository",
        folder.to_str().unwrap(),
    ]);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    assert!(ended.output.starts_with("flowchart LR\n"), "{}", ended.output);
    assert!(ended.output.contains("  n1 -->|\"between\"| n2\n"), "{}", ended.output);
}
