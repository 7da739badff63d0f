//! Taps: the tensors of an ensemble's next requests as an archive that numpy opens.

use std::{net::TcpStream, path::PathBuf, process::Command};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    decoupled::ensembles::{CHAIN, ENSEMBLE, repeats},
    support::{
        Answer, Repository, Server, ensemble,
        gate::Gate,
        grpc::{self, Grpc},
        http::{finish, floats},
        models::TYPES,
        native, until, venv,
    },
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";
pub(crate) const SUMS: &str = "a:FP32[-1] b:FP32[-1] -> sum:FP32[-1] difference:FP32[-1]";
/// Two branches that meet.
pub(crate) const BRANCHES: &str =
    "IN:FP32[-1] ONE:FP32[-1] -> OUT:FP32[-1] REST:FP32[-1] less:FP32[-1]";
pub(crate) const STEPS: [&str; 3] = [
    "left: a=IN b=ONE -> sum=more difference=less",
    "right: x=IN -> y=same",
    "join: a=more b=same -> sum=OUT difference=REST",
];

fn branches() -> Repository {
    Repository::new()
        .with("left", native("add_sub", SUMS))
        .with("right", native("identity", FLOATS))
        .with("join", native("add_sub", SUMS))
        .with("e", ensemble(BRANCHES, &STEPS))
}

fn serve(repository: Repository) -> Server {
    Server::with(repository, &["--allow-tap"])
}

/// A tap that has begun; `finish` waits for its answer.
pub(crate) fn tap(server: &Server, ensemble: &str, body: &Value) -> TcpStream {
    let line = format!("tap on ensemble '{ensemble}'");
    let begun = || server.log().matches(&line).count();
    let before = begun();
    let stream = server.http.start_at(&format!("/v2/models/{ensemble}/tap"), body);
    until("the tap to begin", || before < begun());
    stream
}

/// The archive as a file, named after what is in it.
pub(crate) fn saved(server: &Server, name: &str, answer: &Answer) -> PathBuf {
    assert_eq!(answer.ok().header("content-type"), Some("application/zip"));
    let path = server.repository.beside(name);
    std::fs::write(&path, &answer.body).unwrap();
    path
}

/// What a Python program prints that has the archive as `it` and its manifest as `manifest`.
#[track_caller]
fn numpy(server: &Server, answer: &Answer, program: &str) -> String {
    let path = saved(server, "numpy.npz", answer);
    let start = "import json, sys, numpy as np\nit = np.load(sys.argv[1], allow_pickle=False)\n\
                 manifest = json.loads(it['manifest.json'])\n";
    let mut command = Command::new(venv::python());
    let output = command.args(["-c", &format!("{start}{program}")]).arg(path).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.header(&format!("troupe-tap-{name}")).unwrap_or("missing")
}

fn request(id: &str, x: f32) -> Value {
    let mut request = floats(&[("IN", &[x, 2.0]), ("ONE", &[1.0, 1.0])]);
    request["id"] = id.into();
    request["parameters"] = json!({"mine": 7, "more": "text"});
    request
}

#[test]
fn numpy_opens_the_tensors_of_the_next_requests() {
    let server = serve(branches());
    server.infer("e", &request("before", 0.0)).ok();
    let stream = tap(&server, "e", &json!({"requests": 2}));
    server.infer("e", &request("first", 5.0)).ok();
    let mut second = request("second", 6.0);
    second["outputs"] = json!([{"name": "REST"}]);
    server.infer("e", &second).ok();
    server.infer("e", &request("after", 0.0)).ok();
    let answer = finish(stream);
    let counts = ["ended", "requests", "requests-ended", "tensors", "left-out"];
    assert_eq!(counts.map(|it| header(&answer, it)), ["complete", "2", "2", "14", "0"]);
    assert_eq!(answer.header("content-disposition"), Some("attachment; filename=\"e.npz\""));
    let said = numpy(
        &server,
        &answer,
        "for name in sorted(it.files):\n    \
         if name != 'manifest.json': print(name, it[name].dtype, it[name].tolist())",
    );
    assert_eq!(
        said,
        "\
request-0/IN float32 [5.0, 2.0]
request-0/ONE float32 [1.0, 1.0]
request-0/OUT float32 [11.0, 5.0]
request-0/REST float32 [1.0, 1.0]
request-0/less float32 [4.0, 1.0]
request-0/more float32 [6.0, 3.0]
request-0/same float32 [5.0, 2.0]
request-1/IN float32 [6.0, 2.0]
request-1/ONE float32 [1.0, 1.0]
request-1/OUT float32 [13.0, 5.0]
request-1/REST float32 [1.0, 1.0]
request-1/less float32 [5.0, 1.0]
request-1/more float32 [7.0, 3.0]
request-1/same float32 [6.0, 2.0]
"
    );
    let manifest = manifest(&server, &answer);
    assert_eq!((&manifest["ensemble"], &manifest["version"]), (&json!("e"), &json!(1)));
    assert_eq!(manifest["requests"][0]["id"], "first");
    assert_eq!(manifest["requests"][0]["parameters"], json!({"mine": 7, "more": "text"}));
    assert_eq!(manifest["requests"][1]["outputs"], json!(["REST"]));
    assert_eq!(manifest["steps"][2]["model"], "join");
    assert_eq!(manifest["steps"][2]["inputs"], json!([["a", "more"], ["b", "same"]]));
    let tensors = manifest["requests"][0]["tensors"].as_array().unwrap();
    let more = tensors.iter().find(|it| it["tensor"] == "more").unwrap();
    assert_eq!((&more["written_by"], &more["read_by"]), (&json!(0), &json!([2])));
    server.is_well();
}

fn manifest(server: &Server, answer: &Answer) -> Value {
    serde_json::from_str(&numpy(server, answer, "print(json.dumps(manifest))")).unwrap()
}

#[test]
fn every_type_is_kept_bit_by_bit() {
    let mut repository = Repository::new();
    let (mut signature, mut outputs, mut steps) = (String::new(), String::new(), Vec::new());
    for (dtype, _) in TYPES {
        let model = native("identity", &format!("x:{dtype}[-1] -> y:{dtype}[-1]"));
        repository.write(&format!("id_{dtype}"), &model);
        signature += &format!("IN_{dtype}:{dtype}[-1] ");
        outputs += &format!(" OUT_{dtype}:{dtype}[-1]");
        steps.push(format!("id_{dtype}: x=IN_{dtype} -> y=OUT_{dtype}"));
    }
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    repository.write("all", &ensemble(&format!("{signature}->{outputs}"), &steps));
    let server = serve(repository);
    let stream = tap(&server, "all", &json!({}));
    let input = |(dtype, data): &(&str, &[u8])| {
        json!({"name": format!("IN_{dtype}"), "datatype": dtype, "shape": [2],
               "parameters": {"binary_data_size": data.len()}})
    };
    let inputs: Vec<Value> = TYPES.iter().map(input).collect();
    let tensors: Vec<&[u8]> = TYPES.iter().map(|it| it.1).collect();
    let request = json!({"inputs": inputs, "parameters": {"binary_data_output": true}});
    server.http.infer_binary("all", &request, &tensors).ok();
    let answer = finish(stream);
    let said = numpy(
        &server,
        &answer,
        "for one in manifest['requests'][0]['tensors']:\n    \
         array = it[one['array']]\n    \
         assert array.dtype == np.dtype(one['stored_as']), one\n    \
         assert one['shape'] == [2], one\n    \
         print(one['tensor'], array.tobytes().hex())",
    );
    for (dtype, data) in TYPES {
        let hex: String = data.iter().map(|it| format!("{it:02x}")).collect();
        for name in ["IN", "OUT"] {
            assert!(said.contains(&format!("{name}_{dtype} {hex}\n")), "{name}_{dtype}: {said}");
        }
    }
}

#[test]
fn chosen_tensors_within_a_bound() {
    let server = serve(branches());
    let stream = tap(&server, "e", &json!({"edges": ["OUT", "more"], "requests": 1}));
    server.infer("e", &request("a", 5.0)).ok();
    let answer = finish(stream);
    let names = "print(*sorted(it.files))";
    let said = numpy(&server, &answer, names);
    assert_eq!(said, "manifest.json request-0/OUT request-0/more\n");
    // What is small is kept, what is large is not.
    let stream = tap(&server, "e", &json!({"edges": ["IN", "ONE"], "max_bytes": 4000}));
    let (large, one) = ([1.0; 1000], [1.0]);
    server.infer("e", &floats(&[("IN", &large), ("ONE", &one)])).refuses(400, "a");
    let answer = finish(stream);
    assert_eq!(numpy(&server, &answer, names), "manifest.json request-0/ONE\n");
    let counts = ["tensors", "left-out", "left-out-bytes"];
    assert_eq!(counts.map(|it| header(&answer, it)), ["1", "1", "4000"]);
    let request = &manifest(&server, &answer)["requests"][0];
    assert_eq!(request["left_out"], json!([{"tensor": "IN", "count": 1, "bytes": 4000}]));
    assert_eq!(request["errors"][0]["step"], 0);
}

#[test]
fn large_tensors_come_whole() {
    let server = serve(branches());
    let stream = tap(&server, "e", &json!({"edges": ["IN", "OUT"]}));
    let floats: Vec<u8> = (0..1u32 << 20).flat_map(|it| (it as f32).to_le_bytes()).collect();
    let input = |name| {
        json!({"name": name, "datatype": "FP32", "shape": [1 << 20],
               "parameters": {"binary_data_size": floats.len()}})
    };
    let request = json!({"inputs": [input("IN"), input("ONE")],
                         "parameters": {"binary_data_output": true}});
    server.http.infer_binary("e", &request, &[&floats, &floats]).ok();
    let answer = finish(stream);
    let program = "x = np.arange(1 << 20, dtype=np.float32)\n\
                   print((it['request-0/IN'] == x).all(), (it['request-0/OUT'] == 3 * x).all())";
    assert_eq!(numpy(&server, &answer, program), "True True\n");
}

#[test]
fn taps_are_off_unless_they_are_allowed() {
    let server = Server::start(branches());
    let answer = server.http.post("/v2/models/e/tap", "{}");
    answer.refuses(501, "capturing tensors is not allowed: start the server with --allow-tap");
}

#[test]
fn wrong_taps_are_told_what_is_wrong() {
    let flags = ["--allow-tap", "--tap-max-bytes=1000"];
    let server = Server::with(branches(), &flags);
    let known = "the tensors of ensemble 'e' are 'IN', 'ONE', 'OUT', 'REST'";
    for (path, body, status, expected) in [
        ("e", json!({"edges": ["more", "nope"]}), 400, "no tensor 'nope': "),
        ("e", json!({"edges": ["more", "nope"]}), 400, known),
        ("e", json!({"edges": []}), 400, "'edges' names no tensor"),
        ("e", json!({"edges": "IN"}), 400, "failed to parse the request JSON buffer"),
        ("e", json!({"request": 1}), 400, "unknown field `request`"),
        ("e", json!({"requests": 0}), 400, "invalid value 0 for 'requests', expected 1 to 10000"),
        ("e", json!({"requests": -1}), 400, "failed to parse"),
        ("e", json!({"max_bytes": 1001}), 400, "expected 1 to 1000, which --tap-max-bytes"),
        ("e", json!({"timeout_secs": 0}), 400, "expected more than 0, up to 3600"),
        ("e", json!({"timeout_secs": 1e300}), 400, "for 'timeout_secs'"),
        ("left", json!({}), 400, "model 'left' is not an ensemble"),
        ("nope", json!({}), 404, "Request for unknown model: 'nope' is not found"),
        ("e/versions/2", json!({}), 404, "version 2 is not found"),
        ("e/versions/x", json!({}), 400, "version should be an integral value"),
    ] {
        let answer = server.http.post(&format!("/v2/models/{path}/tap"), body);
        answer.refuses(status, expected);
    }
    assert_eq!(server.http.get("/v2/models/e/tap").status, 405);
    server.is_well();
}

#[test]
fn a_timeout_answers_with_what_there_is() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let steps = ["id: x=IN -> y=mid", "waits: x=mid -> y=OUT"];
    let server = serve(
        repository
            .with("id", native("identity", FLOATS))
            .with("waits", gate.model("FP32[-1]"))
            .with("e", ensemble("IN:FP32[-1] -> OUT:FP32[-1]", &steps)),
    );
    let stream = tap(&server, "e", &json!({"requests": 2, "timeout_secs": 0.5}));
    let waiting = server.http.start("e", &floats(&[("IN", &[1.0])]));
    gate.is_reached();
    let answer = finish(stream);
    let counts = ["ended", "requests", "requests-ended", "tensors"];
    assert_eq!(counts.map(|it| header(&answer, it)), ["timeout", "1", "0", "2"]);
    let manifest = manifest(&server, &answer);
    assert_eq!((&manifest["ended"], &manifest["requested"]), (&json!("timeout"), &json!(2)));
    assert_eq!(manifest["requests"][0]["ended"], false);
    gate.let_through(1);
    finish(waiting).ok();
}

#[test]
fn one_tap_at_a_time_and_a_client_that_leaves_ends_its_own() {
    let repository = branches().with("f", ensemble(BRANCHES, &STEPS));
    let server = Server::with(repository, &["--allow-tap", "--tap-max-bytes=1000000"]);
    let stream = tap(&server, "e", &json!({"requests": 5, "max_bytes": 600_000}));
    let again = |ensemble: &str, bytes: u64| {
        let body = json!({"max_bytes": bytes, "timeout_secs": 0.01});
        server.http.post(&format!("/v2/models/{ensemble}/tap"), body)
    };
    again("e", 1000).refuses(400, "ensemble 'e' is being tapped already: wait for the end");
    again("f", 500_000).refuses(503, "other taps leave 400000 of the 1000000 bytes");
    again("f", 400_000).ok();
    server.infer("e", &request("a", 1.0)).ok();
    drop(stream);
    until("the tap to be over", || again("e", 1_000_000).status == 200);
    server.is_well();
}

#[test]
fn a_reload_ends_a_tap() {
    let flags = ["--allow-tap", "--model-control-mode=explicit", "--load-model=e"];
    let server = Server::with(branches(), &flags);
    let stream = tap(&server, "e", &json!({"requests": 5}));
    server.infer("e", &request("a", 1.0)).ok();
    server.repository.write_file("e/1/changed", "");
    server.repository.write_file("e/config.pbtxt", ensemble(BRANCHES, &STEPS).batch(0).config);
    server.load("e").ok();
    let answer = finish(stream);
    let counts = ["ended", "requests", "tensors"];
    assert_eq!(counts.map(|it| header(&answer, it)), ["unloaded", "1", "7"]);
}

#[test]
fn the_servers_end_ends_a_tap() {
    let server = serve(branches());
    let stream = tap(&server, "e", &json!({"requests": 5}));
    server.infer("e", &request("a", 1.0)).ok();
    server.signal(Signal::TERM);
    assert_eq!(header(&finish(stream), "ended"), "exiting");
    assert!(server.end().success());
}

#[test]
fn the_edges_of_nested_ensembles_are_those_of_the_one_that_is_named() {
    let outer = ensemble(BRANCHES, &["e: IN=IN ONE=ONE -> OUT=OUT REST=REST less=less"]);
    let server = serve(branches().with("outer", outer));
    let both = [tap(&server, "outer", &json!({})), tap(&server, "e", &json!({}))];
    server.infer("outer", &request("a", 1.0)).ok();
    let [outer, inner] = both.map(finish);
    let names = "print(*(name.split('/')[-1] for name in sorted(it.files)))";
    assert_eq!(numpy(&server, &outer, names), "manifest.json IN ONE OUT REST less\n");
    assert_eq!(numpy(&server, &inner, names), "manifest.json IN ONE OUT REST less more same\n");
}

#[test]
fn responses_of_a_decoupled_step_are_numbered() {
    let server = serve(decoupled_chain());
    let stream = tap(&server, "chain", &json!({}));
    let sent = grpc::floats("chain", &[("IN", &[2.0, 3.0, 4.0])]);
    assert_eq!(Grpc::connect(server.grpc).stream(vec![sent]).unwrap().len(), 3);
    let program = "for name in sorted(it.files)[1:]: print(name, it[name].tolist())\n\
                   print([one['iteration'] for one in manifest['requests'][0]['tensors']])";
    let said = numpy(&server, &finish(stream), program);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines[..7],
        [
            "request-0-iteration-0/OUT [4.0]",
            "request-0-iteration-0/mid [2.0]",
            "request-0-iteration-1/OUT [9.0]",
            "request-0-iteration-1/mid [3.0]",
            "request-0-iteration-2/OUT [16.0]",
            "request-0-iteration-2/mid [4.0]",
            "request-0/IN [2.0, 3.0, 4.0]",
        ]
    );
    assert!(lines[7].starts_with("[None, 0, "), "{}", lines[7]);
}

/// A decoupled step and one behind it.
pub(crate) fn decoupled_chain() -> Repository {
    Repository::new()
        .with("repeats", repeats())
        .with("square", native("mul", "X:FP32[-1] Y:FP32[-1] -> XY:FP32[-1]"))
        .with("chain", ensemble(ENSEMBLE, &CHAIN))
}
