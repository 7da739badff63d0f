//! A real Jaeger, where there is one: it takes the spans, and answers with the same tree.

use std::{
    env, fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::{
    observe::traces::send,
    support::{
        Http, Repository, Server, collector::new_trace, ensemble, eventually, http::floats, native,
        until,
    },
};

/// A running Jaeger that keeps traces in memory; killed when dropped.
struct Jaeger {
    process: Child,
    otlp: SocketAddr,
    api: Http,
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).map(|it| it.join(name)).find(|it| it.is_file())
}

/// Ports that were free just now.
fn free_ports<const N: usize>() -> [SocketAddr; N] {
    let held = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|it| it.local_addr().unwrap())
}

/// The first generation, which flags tell where to listen.
fn all_in_one(program: PathBuf) -> Jaeger {
    let [otlp, api, admin, a, b, c, d] = free_ports();
    let mut command = Command::new(program);
    for (name, address) in [
        ("collector.otlp.http", otlp),
        ("query.http-server", api),
        ("admin.http", admin),
        ("collector.otlp.grpc", a),
        ("collector.grpc-server", b),
        ("collector.http-server", c),
        ("query.grpc-server", d),
    ] {
        command.arg(format!("--{name}.host-port={address}"));
    }
    Jaeger { process: start(command), otlp, api: Http(api) }
}

/// The second generation, which has a file for it.
fn second(program: PathBuf, repository: &Repository) -> Jaeger {
    let [otlp, api, rpc] = free_ports();
    let config = repository.beside("jaeger.yaml");
    let text = format!(
        "service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines: {{traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}}}
  telemetry: {{metrics: {{level: none}}}}
extensions:
  jaeger_storage: {{backends: {{memory: {{memory: {{max_traces: 1000}}}}}}}}
  jaeger_query:
    storage: {{traces: memory}}
    http: {{endpoint: '{api}'}}
    grpc: {{endpoint: '{rpc}'}}
receivers: {{otlp: {{protocols: {{http: {{endpoint: '{otlp}'}}}}}}}}
exporters: {{jaeger_storage_exporter: {{trace_storage: memory}}}}
"
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(program);
    command.arg("--config").arg(config);
    Jaeger { process: start(command), otlp, api: Http(api) }
}

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn jaeger(repository: &Repository) -> Option<Jaeger> {
    let first = on_path("jaeger-all-in-one").map(all_in_one);
    let mut jaeger = first.or_else(|| Some(second(on_path("jaeger")?, repository)))?;
    until("Jaeger to listen", || {
        let ended = jaeger.process.try_wait().unwrap();
        assert!(ended.is_none(), "Jaeger ended with {ended:?}");
        [jaeger.otlp, jaeger.api.0].iter().all(|it| std::net::TcpStream::connect(it).is_ok())
    });
    Some(jaeger)
}

#[test]
fn a_trace_is_found_in_jaeger() {
    let signature = "IN:FP32[-1] -> OUT:FP32[-1]";
    let steps = ["left: x=IN -> y=A", "right: x=IN -> y=B", "mul: X=A Y=B -> XY=OUT"];
    let repository = Repository::new()
        .with("left", native("identity", "x:FP32[-1] -> y:FP32[-1]"))
        .with("right", native("identity", "x:FP32[-1] -> y:FP32[-1]"))
        .with("mul", native("mul", "X:FP32[-1] Y:FP32[-1] -> XY:FP32[-1]"))
        .with("fork", ensemble(signature, &steps));
    let Some(jaeger) = jaeger(&repository) else {
        println!("skipped: neither jaeger-all-in-one nor jaeger is on the PATH");
        return;
    };
    let url = format!("--trace-config=opentelemetry,url=http://{}/v1/traces", jaeger.otlp);
    let server = Server::with(
        repository,
        &[
            "--trace-config=mode=opentelemetry",
            "--trace-config=level=TIMESTAMPS",
            "--trace-config=opentelemetry,resource=service.name=troupe-test",
            "--trace-config=opentelemetry,bsp_schedule_delay=5",
            &url,
        ],
    );
    let (id, parent) = new_trace();
    let headers = [("traceparent", &*parent)];
    send(&server, "fork", &headers, &floats(&[("IN", &[2.0])])).ok();
    let trace = eventually("the trace in Jaeger", || {
        let answer = jaeger.api.get("/api/traces?service=troupe-test&operation=InferRequest");
        let found = answer.json()["data"].as_array()?.clone();
        let trace = found.into_iter().find(|it| it["traceID"] == format!("{id:032x}"))?;
        // Jaeger takes spans in one by one.
        let spans = trace["spans"].as_array()?;
        let has_all =
            |name: &&str| 3 == spans.iter().filter(|it| it["operationName"] == *name).count();
        ["queue", "batch", "compute", "compute-infer"].iter().all(has_all).then_some(trace)
    });
    let spans = trace["spans"].as_array().unwrap();
    // A link to the parent itself takes its place: Jaeger says FOLLOWS_FROM, and draws it below.
    let parent = |span: &Value| {
        let references = span["references"].as_array().unwrap();
        let child = references.iter().find(|it| it["refType"] == "CHILD_OF");
        child.or(references.first()).map_or(Value::Null, |it| it["spanID"].clone())
    };
    let one = |name: &str| spans.iter().find(|it| it["operationName"] == name).unwrap();
    assert_eq!(parent(one("fork")), one("InferRequest")["spanID"]);
    for step in ["left", "right", "mul"] {
        let span = one(step);
        assert_eq!(parent(span), one("fork")["spanID"]);
        let below = spans.iter().filter(|it| parent(it) == span["spanID"]);
        let mut names: Vec<_> = below.map(|it| it["operationName"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["batch", "compute", "queue"]);
        let tags = span["tags"].as_array().unwrap();
        assert!(tags.iter().any(|it| it["key"] == "troupe.ensemble" && it["value"] == "fork"));
    }
    draws(&jaeger, &server, id);
}

/// The script of the walkthrough prints the tree and draws it.
fn draws(jaeger: &Jaeger, server: &Server, id: u128) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/tracing/waterfall.py");
    let picture = server.repository.beside("trace.svg");
    let output = Command::new("python3")
        .arg(script)
        .args([&format!("{id:032x}"), "--jaeger", &format!("http://{}", jaeger.api.0)])
        .args(["--all", "--output"])
        .arg(&picture)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let of_mul: Vec<&str> = text.lines().skip_while(|it| !it.contains(" mul ")).collect();
    assert!(text.starts_with("InferRequest ") && of_mul[0].starts_with("    mul "), "{text}");
    assert!(of_mul.iter().any(|it| it.starts_with("        compute-infer ")), "{text}");
    let picture = fs::read_to_string(picture).unwrap();
    assert_eq!(picture.matches("<rect").count(), text.lines().count() + 1, "{picture}");
}
