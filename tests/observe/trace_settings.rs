//! Trace settings: sampling, exporters, and what is dropped when a collector does not answer.

use std::{
    fs,
    io::Read,
    net::TcpListener,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    observe::traces::{COLLECTOR, request, send, traced},
    support::{
        Repository, Server,
        collector::new_trace,
        ensemble, eventually,
        grpc::{Grpc, floats as grpc_floats},
        native, troupe, until,
    },
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

fn identities(names: &[&str]) -> Repository {
    Repository::of(names.iter().map(|it| (*it, native("identity", FLOATS))))
}

/// A chain with a request of its own in front of each test.
fn chain() -> Repository {
    identities(&["m"]).with("chain", ensemble(FLOATS, &["m: x=x -> y=mid", "m: x=mid -> y=y"]))
}

fn infer(server: &Server, model: &str, times: usize) {
    for _ in 0..times {
        server.infer(model, &request("x")).ok();
    }
}

/// How many requests of a server the collector has seen; `name` is the server's.
fn roots(name: &str) -> usize {
    let is_root = |it: &crate::support::collector::Seen| {
        it.resource["service.name"] == name && it.span.name == "InferRequest"
    };
    COLLECTOR.all().into_iter().filter(is_root).count()
}

/// A server whose spans can be told from those of others; `flags` come after.
fn named(name: &str, models: Repository, flags: &[&str]) -> Server {
    let name = format!("opentelemetry,resource=service.name={name}");
    traced(models, &[&[&*name], flags].concat())
}

#[test]
fn one_request_in_so_many_is_traced_until_none_is_left() {
    let models = identities(&["m", "own"]);
    let server = named("rate", models, &["rate=3", "count=2"]);
    infer(&server, "m", 5);
    until("one trace", || roots("rate") == 1);
    infer(&server, "m", 10);
    until("the second", || roots("rate") == 2);
    let now = server.http.get("/v2/trace/setting").ok().json();
    assert_eq!((&now["trace_rate"], &now["trace_count"]), (&json!("3"), &json!("0")));
    // A client that traces its request has it traced, whatever the rate and count.
    let (id, parent) = new_trace();
    send(&server, "m", &[("traceparent", &parent)], &request("x")).ok();
    COLLECTOR.tree(id);
    assert_eq!(roots("rate"), 3);
    // Set anew, for one model only.
    let change = json!({"trace_count": "1", "trace_rate": "1"});
    let own = server.http.post("/v2/models/own/trace/setting", &change).ok().json();
    assert_eq!((&own["trace_rate"], &own["trace_count"]), (&json!("1"), &json!("1")));
    infer(&server, "m", 6);
    infer(&server, "own", 2);
    until("the one that is left", || roots("rate") == 4);
    assert_eq!(server.http.get("/v2/models/own/trace/setting").json()["trace_count"], "0");
    // What is off is off for everybody.
    server.http.post("/v2/trace/setting", json!({"trace_level": ["OFF"]})).ok();
    send(&server, "m", &[("traceparent", &parent)], &request("x")).ok();
    server.signal(Signal::TERM);
    assert!(server.end().success(), "{}", server.log());
    assert_eq!(roots("rate"), 4);
}

#[test]
fn with_rate_0_only_what_clients_trace_is_traced() {
    let server = named("none", identities(&["m"]), &["rate=0"]);
    infer(&server, "m", 3);
    let (id, parent) = new_trace();
    send(&server, "m", &[("traceparent", &parent)], &request("x")).ok();
    send(&server, "m", &[("traceparent", "nonsense")], &request("x")).ok();
    COLLECTOR.tree(id).holds_together();
    server.signal(Signal::TERM);
    assert!(server.end().success());
    assert_eq!(roots("none"), 1);
}

#[test]
fn spans_travel_over_grpc_as_the_standard_variables_say() {
    let endpoint = format!("http://{}", COLLECTOR.grpc);
    let envs = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=seven"),
        ("OTEL_SERVICE_NAME", "of the environment"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,host.name=here"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
    ];
    let envs = envs.map(|(name, value)| (name, Path::new(value)));
    let flags = ["--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS"];
    let server = Server::launch(chain(), &[&flags[..], &["--trace-rate=1"]].concat(), &envs);
    server.ready();
    server.logged("OTEL_TRACES_SAMPLER has no effect here");
    let (id, parent) = new_trace();
    send(&server, "chain", &[("traceparent", &parent)], &request("x")).ok();
    let tree = COLLECTOR.tree(id);
    tree.holds_together();
    let root = tree.one("InferRequest");
    assert_eq!(root.resource["service.name"], "of the environment");
    assert_eq!(root.resource["deployment.environment.name"], "test");
    assert!(root.headers.contains("seven"), "{}", root.headers);
    assert_eq!(tree.named("m").len(), 2);
}

#[test]
fn all_spans_are_sent_before_the_server_ends() {
    let slowly = "opentelemetry,bsp_schedule_delay=3600000";
    let server = named("at the end", chain(), &[slowly, "opentelemetry,bsp_max_queue_size=100000"]);
    let mut grpc = Grpc::connect(server.grpc);
    for _ in 0..50 {
        grpc.infer(grpc_floats("chain", &[("x", &[1.0])])).unwrap();
    }
    drop(grpc);
    server.signal(Signal::TERM);
    assert!(server.end().success());
    assert_eq!(roots("at the end"), 50);
}

#[test]
fn a_collector_that_is_not_there_costs_nothing_but_spans() {
    // Bound and closed: nobody listens there.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for protocol in ["http/protobuf", "grpc"] {
        let url = format!("opentelemetry,url=http://{closed}");
        let protocol = format!("opentelemetry,protocol={protocol}");
        let few = "opentelemetry,bsp_max_queue_size=10";
        let server = traced(chain(), &[&url, &protocol, few]);
        infer(&server, "chain", 100);
        server.logged("spans could not be sent to");
        server.is_well();
        server.signal(Signal::TERM);
        assert!(server.end().success(), "{}", server.log());
    }
}

#[test]
fn a_collector_that_never_answers_holds_nobody_up() {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("opentelemetry,url=http://{}/v1/traces", deaf.local_addr().unwrap());
    let flags = COLLECTOR.flags(&[&url, "opentelemetry,bsp_max_queue_size=10"]);
    let flags: Vec<&str> =
        flags.iter().map(String::as_str).chain(["--exit-timeout-secs=2"]).collect();
    let server = Server::with(chain(), &flags);
    infer(&server, "chain", 1);
    // The connection is taken, the request too, and nothing is said.
    let (mut connection, _) = deaf.accept().unwrap();
    connection.read_exact(&mut [0; 4]).unwrap();
    infer(&server, "chain", 100);
    server.is_well();
    server.signal(Signal::TERM);
    assert!(server.end().success(), "{}", server.log());
    server.logged("Traces that were not written or sent in time are lost.");
}

#[test]
fn settings_are_told_and_changed_over_http() {
    let server = traced(identities(&["m"]), &["rate=10"]);
    let get = |path: &str| server.http.get(path).ok().json();
    let all = get("/v2/trace/setting");
    assert_eq!(
        (&all["trace_level"], &all["trace_mode"]),
        (&json!(["TIMESTAMPS"]), &json!("opentelemetry"))
    );
    assert_eq!((&all["trace_rate"], &all["bsp_schedule_delay"]), (&json!("10"), &json!("5")));
    assert!(
        all["url"].as_str().unwrap().ends_with("/v1/traces") && all.get("trace_file").is_none()
    );
    assert_eq!(get("/v2/models/m/trace/setting"), all);
    let of_model = "/v2/models/m/trace/setting";
    let post = |path: &str, change: Value| server.http.post(path, change);
    assert_eq!(post(of_model, json!({"trace_rate": "7"})).ok().json()["trace_rate"], "7");
    assert_eq!(
        post("/v2/trace/setting", json!({"trace_rate": "8"})).ok().json()["trace_rate"],
        "8"
    );
    assert_eq!(get(of_model)["trace_rate"], "7");
    assert_eq!(post(of_model, json!({"trace_rate": null})).ok().json()["trace_rate"], "8");
    assert_eq!(post("/v2/trace/setting", json!({"trace_rate": null})).ok().json(), all);
    let file = "trace file location can not be updated through network protocol";
    post(of_model, json!({"trace_file": "x"})).refuses(501, file);
    let off = "Expect only one trace level 'OFF' is specified";
    post("/v2/trace/setting", json!({"trace_level": ["OFF", "TENSORS"]})).refuses(400, off);
    let count = "Unable to parse 'trace_count'. Expecting value >= -1, got:-2";
    post(of_model, json!({"trace_count": "-2"})).refuses(400, count);
    let unknown = "Request for unknown model : nope";
    post("/v2/models/nope/trace/setting", json!({})).refuses(400, unknown);
    server.http.get("/v2/models/nope/trace/setting").refuses(400, unknown);
    server.http.post("/v2/trace/setting", "[1]").refuses(400, "failed to parse the request JSON");
    assert_eq!(get("/v2/trace/setting"), all);
    let listed = get("/v2")["extensions"].to_string();
    assert!(listed.contains("\"trace\""), "{listed}");
}

#[test]
fn what_cannot_be_traced_is_said_at_start() {
    for (flag, text) in [
        ("--trace-config=level=TIMESTAMPS", "trace file name is not given"),
        ("--trace-config=rate=often", "expected a number from 0"),
        ("--trace-config=opentelemetry,url=ftp://there", "expected the collector's URL"),
        ("--trace-config=triton,file=/nowhere/at/all.json", "no such folder"),
    ] {
        let mode = if flag.contains("url") { "opentelemetry" } else { "triton" };
        let mode = format!("--trace-config=mode={mode}");
        let ended = troupe(&[&mode, flag, "--http-port=0", "--grpc-port=0", "--metrics-port=0"]);
        assert!(!matches!(ended.code, Some(0) | None), "{flag}: {}", ended.output);
        assert!(ended.output.contains(text), "{flag}: {}", ended.output);
    }
}

/// The objects of a trace file; none if it is not there or being written.
fn objects(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn heads(path: &Path) -> usize {
    objects(path).iter().filter(|it| it.get("model_name").is_some()).count()
}

fn beside(path: &Path, index: usize) -> PathBuf {
    format!("{}.{index}", path.display()).into()
}

#[test]
fn tritons_mode_writes_its_schema_to_a_file() {
    let models = chain();
    let path = models.beside("trace.json");
    let file = format!("--trace-config=triton,file={}", path.display());
    let levels = ["--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS"];
    let server = Server::with(models, &[&levels[..], &["--trace-config=rate=1", &file]].concat());
    server.infer("chain", &request("x")).ok();
    let objects =
        eventually("a trace in the file", || Some(objects(&path)).filter(|it| !it.is_empty()));
    let head =
        |id: u64| json!({"id": id, "model_name": "chain", "model_version": 1, "request_id": "r7"});
    assert_eq!(objects[0], head(1));
    let step =
        json!({"id": 2, "model_name": "m", "model_version": 1, "request_id": "r7", "parent_id": 1});
    assert!(objects.contains(&step), "{objects:#?}");
    let activities = |id: u64| {
        let of_id = objects.iter().filter(|it| it["id"] == id);
        of_id.filter_map(|it| it["timestamps"][0]["name"].as_str()).collect::<Vec<_>>()
    };
    assert_eq!(
        activities(1),
        [
            "HTTP_RECV_START",
            "HTTP_RECV_END",
            "INFER_RESPONSE_COMPLETE",
            "HTTP_SEND_START",
            "HTTP_SEND_END",
            "REQUEST_START",
            "QUEUE_START",
            "REQUEST_END",
        ]
    );
    assert_eq!(
        activities(2),
        [
            "REQUEST_START",
            "QUEUE_START",
            "COMPUTE_START",
            "COMPUTE_INPUT_END",
            "COMPUTE_OUTPUT_START",
            "COMPUTE_END",
            "REQUEST_END",
        ]
    );
    let times: Vec<i64> = objects
        .iter()
        .filter(|it| it["id"] == 2)
        .filter_map(|it| it["timestamps"][0]["ns"].as_i64())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
    let tensor = json!({"name": "x", "data": "2,3", "shape": "2", "dtype": "FP32"});
    assert!(
        objects.contains(&json!({"id": 3, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor}))
    );
    let tensor = json!({"name": "y", "data": "2,3", "shape": "2", "dtype": "FP32"});
    assert!(
        objects.contains(&json!({"id": 3, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": tensor}))
    );
    let told = server.http.get("/v2/trace/setting").ok().json();
    assert_eq!(told["trace_file"], path.display().to_string());
    assert_eq!((&told["trace_mode"], &told["log_frequency"]), (&json!("triton"), &json!("0")));
    infer(&server, "m", 3);
    server.signal(Signal::TERM);
    assert!(server.end().success());
    assert_eq!(heads(&path), 6);
}

#[test]
fn traces_are_spread_over_files_as_log_frequency_and_count_say() {
    let models = identities(&["m", "counted"]);
    let path = models.beside("trace.json");
    let server = Server::with(
        models,
        &[
            &format!("--trace-file={}", path.display()),
            "--trace-level=TIMESTAMPS",
            "--trace-rate=1",
            "--trace-log-frequency=2",
        ],
    );
    let change = json!({"trace_count": "3", "log_frequency": "0"});
    server.http.post("/v2/models/counted/trace/setting", change).ok();
    infer(&server, "m", 5);
    until("two whole files and a begun one", || heads(&beside(&path, 2)) == 1);
    assert_eq!((heads(&beside(&path, 0)), heads(&beside(&path, 1))), (2, 2));
    assert!(!path.exists());
    infer(&server, "counted", 9);
    until("a file of those that were counted", || heads(&beside(&path, 3)) == 3);
    assert!(!path.exists());
    server.signal(Signal::TERM);
    assert!(server.end().success());
    assert!(!beside(&path, 4).exists());
}
