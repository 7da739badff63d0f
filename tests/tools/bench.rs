//! `troupe bench`: load on a running server, what it prints, and the files it writes.

use std::{
    fs,
    net::TcpListener,
    process::{Command, Stdio},
    sync::LazyLock,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    decoupled::models::{FLOATS, REPEATS, decoupled},
    support::{
        Repository, Server, ensemble,
        models::{delay, execute},
        native, process,
        server::Ended,
        troupe, until,
    },
};

/// Two steps.
const STEPS: [&str; 2] = ["quick: x=in -> y=one", "slow: x=one -> y=out"];

pub(crate) const TENSORS: &str = "x:FP32[4] -> y:FP32[4]";

/// Every second request fails.
const STUMBLES: &str = "
    self.count = getattr(self, 'count', 0) + len(requests)
    if self.count % 2 == 0:
        raise ValueError('stumbled')
    x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
    return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]";

/// Calls another model.
const CALLS: &str = "
    x = pb_utils.get_input_tensor_by_name(requests[0], 'x')
    call = pb_utils.InferenceRequest(
        model_name='slow', inputs=[x], requested_output_names=['y'])
    y = call.exec().output_tensors()[0]
    return [pb_utils.InferenceResponse([y])]";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let repository = Repository::new()
        .with("quick", delay(2, TENSORS))
        .with("slow", delay(8, TENSORS))
        .with("chain", ensemble("in:FP32[4] -> out:FP32[4]", &STEPS))
        .with("batches", native("identity", "x:FP32[-1,2] -> y:FP32[-1,2]").batch(4))
        .with("repeats", decoupled(execute(FLOATS, REPEATS)))
        .with("stumbles", execute(TENSORS, STUMBLES))
        .with("fails", execute(TENSORS, "raise ValueError('it never works')"))
        .with("calls", execute(TENSORS, CALLS))
        .with("stuck", delay(600_000, TENSORS));
    Server::start(repository)
});

fn bench(server: &Server, model: &str, arguments: &[&str]) -> Ended {
    let url = server.grpc.to_string();
    troupe(&[&["bench", model, "--url", &url], arguments].concat())
}

/// What the file of `--json` says, and the terminal.
#[track_caller]
pub(crate) fn measured(server: &Server, model: &str, arguments: &[&str]) -> (Value, String) {
    let path = server.repository.beside(&format!("{model}.json"));
    let path = path.to_str().unwrap();
    let ended = bench(server, model, &[arguments, &["--json", path]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    (serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap(), ended.output)
}

#[track_caller]
fn fails(model: &str, arguments: &[&str], expected: &str) {
    let ended = bench(&SERVER, model, arguments);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(ended.output.contains(expected), "no `{expected}` in {}", ended.output);
}

#[test]
fn models_that_python_calls_are_found() {
    let (report, output) = measured(&SERVER, "calls", &["--concurrency=2", "--seconds=1"]);
    let steps = report["levels"][0]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|it| it["model"] == "slow" && it["is_step"] == false), "{report:#}");
    assert!(output.contains("`slow`"), "{output}");
}

#[test]
fn files_hold_what_was_measured() {
    let file = |name: &str| SERVER.repository.beside(name).to_str().unwrap().to_owned();
    let arguments = ["--concurrency=1:2", "--seconds=0.5", "--warmup=0.1"];
    let (csv, html) = (file("perf.csv"), file("report.html"));
    let ended = bench(&SERVER, "chain", &[&arguments[..], &["-f", &csv, "--html", &html]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let csv = fs::read_to_string(csv).unwrap();
    let (header, rows) = csv.split_once('\n').unwrap();
    assert_eq!(
        header,
        "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,\
         Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,\
         p50 latency,p90 latency,p95 latency,p99 latency"
    );
    let rows: Vec<Vec<f64>> =
        rows.lines().map(|it| it.split(',').map(|it| it.parse().unwrap()).collect()).collect();
    assert_eq!((rows.len(), rows[0].len()), (2, 13), "{csv}");
    assert!(rows[0][1] <= rows[1][1] && rows.iter().all(|it| 0.0 < it[9]), "{csv}");
    for step in ["quick", "slow"] {
        let csv = fs::read_to_string(file(&format!("{step}_v1.perf.csv"))).unwrap();
        assert_eq!(csv.lines().count(), 3, "{csv}");
    }
    let html = fs::read_to_string(html).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    for part in ["<h1>chain</h1>", "slow", "Throughput", "<svg"] {
        assert!(html.contains(part), "no {part} in {html}");
    }
    fails("chain", &["--csv", "/no/such/folder/x.csv"], "/no/such/folder/x.csv: No such file");
}

#[test]
fn responses_of_decoupled_models_are_counted() {
    let csv = SERVER.repository.beside("repeats.csv");
    let arguments = ["--concurrency=2", "--seconds=0.5", "-i", "[1,2,3]", "-f"];
    let (report, output) =
        measured(&SERVER, "repeats", &[&arguments[..], &[csv.to_str().unwrap()]].concat());
    let level = &report["levels"][0];
    let rate = |it: &str| level[it].as_f64().unwrap();
    let each = rate("responses_per_second") / rate("inferences_per_second");
    assert!((each - 3.0).abs() < 1e-6, "{level:#}");
    assert!(level["first_response_us"]["p50"].as_f64() <= level["latency_us"]["max"].as_f64());
    assert!(output.contains("Responses/s"), "{output}");
    assert!(fs::read_to_string(csv).unwrap().contains(",Response Throughput,"));
}

#[test]
fn inputs_are_made_up_or_given() {
    let short = ["--concurrency=1", "--seconds=0.2", "--warmup=0"];
    let with = |more: &[&str]| measured(&SERVER, "batches", &[&short, more].concat()).0;
    for more in [
        &["--shape", "x:3,2", "-b", "4"][..],
        &["--shape=x=3,2", "--zero-input"],
        &["-i", "[[1,2],[3,4]]", "-b", "2"],
    ] {
        let report = with(more);
        assert_eq!(report["levels"][0]["failed"], 0, "{report:#}");
    }
    let report = with(&["--shape", "x:1,2", "-b", "4"]);
    let level = &report["levels"][0];
    let rows =
        level["inferences_per_second"].as_f64().unwrap() * level["seconds"].as_f64().unwrap();
    assert_eq!(rows.round(), 4.0 * level["requests"].as_f64().unwrap());
    fails("batches", &[], "input `x`: its dimensions [-1,2] are open: give --shape x:…");
    fails("batches", &["--shape", "y:1"], "expected `NAME:1,2`, the inputs of `batches` are `x`");
    fails("batches", &["-b", "5"], "model `batches` takes at most 4 rows");
    fails("chain", &["-b", "2"], "model `chain` takes no batches");
    fails(
        "chain",
        &["-i", "[1,2,3,4]", "-i", "[1,2,3,4]"],
        "--input in: it is given more than once",
    );
}

#[test]
fn failed_requests_are_counted() {
    let short = ["--concurrency=2", "--seconds=0.5", "--warmup=0"];
    let (report, output) = measured(&SERVER, "stumbles", &short);
    let level = &report["levels"][0];
    assert!(0 < level["failed"].as_u64().unwrap() && 0 < level["requests"].as_u64().unwrap());
    assert!(output.contains("failed, the first: ") && output.contains("stumbled"), "{output}");
    fails("fails", &short, "every request failed: ");
    fails("fails", &short, "it never works");
    fails("nobody", &short, "Request for unknown model: 'nobody' is not found");
    fails("stuck", &["--concurrency=1", "--seconds=0.1"], "no request was answered in ");
}

#[test]
fn a_server_that_is_not_there_is_told() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = troupe(&["bench", "m", "--url", &free]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.output.contains(&format!("nobody listens at {free}")), "{}", ended.output);
}

#[test]
fn what_was_measured_before_a_stop_is_printed() {
    let server = Server::start(Repository::new().with("m", delay(5, TENSORS)));
    let mut command = Command::new(env!("CARGO_BIN_EXE_troupe"));
    command.args(["bench", "m", "--url", &server.grpc.to_string()]);
    command.args(["--concurrency=1,2", "--seconds=3600", "--warmup=0"]);
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().unwrap();
    until("some requests", || 10 < server.successes("m"));
    process::signal(child.id(), Signal::INT);
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(stdout.contains("| In flight |") && stdout.contains("\n| 1 "), "{stdout}");
    assert!(stderr.contains("stopped before everything was measured"), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
    server.is_well();
}
