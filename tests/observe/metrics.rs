//! The page of metrics: where the time of ensembles goes, what is shown when, and the machine.

use serde_json::json;

use crate::support::{
    Repository, Server, ensemble,
    gate::Gate,
    grpc::{Grpc, floats as grpc_floats},
    http::{finish, floats, rows},
    models::{delay, execute, native},
    until,
};

const FLOATS: &str = "x:FP32[4] -> y:FP32[4]";
const ONE: &str = "X:FP32[4] -> Y:FP32[4]";

/// Seconds of a step, and those of them in queue and compute.
type Spent = (f64, f64);

fn ask(server: &Server, model: &str) {
    let input: (&str, &[f32]) = ("X", &[1.0, 2.0, 3.0, 4.0]);
    server.infer(model, &floats(&[input])).ok();
}

fn sum(server: &Server, name: &str, labels: &[&str]) -> f64 {
    server.metric(&format!("{name}_sum"), labels).unwrap_or_else(|| panic!("no {name} {labels:?}"))
}

/// The time of one step so far.
fn step(server: &Server, step: usize) -> Spent {
    let part = |name: &str| {
        let name = format!("troupe_ensemble_step_{name}_seconds");
        sum(server, &name, &["ensemble=\"e\"", &format!("step=\"{step}\"")])
    };
    let (whole, busy) = (part("duration"), part("queue") + part("compute"));
    is_near(busy + part("edge"), whole);
    (whole, busy)
}

/// Within 2 %.
#[track_caller]
fn is_near(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 0.02 * expected, "{got}, expected about {expected}");
}

/// Asks some times, and compares each time what `path` makes of the steps with the whole.
fn adds_up(server: &Server, steps: usize, path: fn(&[Spent]) -> Spent) {
    let e = ["ensemble=\"e\""];
    let look = || -> Vec<Spent> { (0..steps).map(|it| step(server, it)).collect() };
    ask(server, "e");
    for _ in 0..4 {
        let whole = || sum(server, "troupe_ensemble_request_seconds", &e);
        let overhead = || sum(server, "troupe_ensemble_overhead_seconds", &e);
        let told = || server.stats("e")["inference_stats"]["success"]["ns"].as_f64().unwrap() / 1e9;
        let before = (look(), whole(), overhead(), told());
        ask(server, "e");
        let after = look();
        let spent = |(a, b): (&Spent, &Spent)| (a.0 - b.0, a.1 - b.1);
        let spent: Vec<_> = after.iter().zip(&before.0).map(spent).collect();
        let (along_the_path, busy) = path(&spent);
        is_near(along_the_path, whole() - before.1);
        is_near(busy + overhead() - before.2, whole() - before.1);
        is_near(whole() - before.1, told() - before.3);
        assert!(0.0 < overhead() - before.2);
    }
}

#[test]
fn the_steps_of_a_chain_add_up_to_its_time() {
    let steps = ["two: x=X -> y=A", "three: x=A -> y=B", "none: x=B -> y=Y"];
    let server = Server::start(Repository::of([
        ("two", delay(2, FLOATS)),
        ("three", delay(3, FLOATS)),
        ("none", native("identity", FLOATS)),
        ("e", ensemble(ONE, &steps)),
    ]));
    adds_up(&server, 3, |steps| {
        steps.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    });
}

#[test]
fn the_steps_of_the_longest_branch_add_up_to_the_time_of_all() {
    let steps = [
        "two: x=X -> y=A",
        "short: x=A -> y=B",
        "long: x=A -> y=C",
        "add_sub: a=B b=C -> sum=Y difference=D",
    ];
    let server = Server::start(Repository::of([
        ("two", delay(2, FLOATS)),
        ("short", delay(1, FLOATS)),
        ("long", delay(8, FLOATS)),
        ("add_sub", native("add_sub", "a:FP32[4] b:FP32[4] -> sum:FP32[4] difference:FP32[4]")),
        ("e", ensemble("X:FP32[4] -> Y:FP32[4] D:FP32[4]", &steps)),
    ]));
    adds_up(&server, 4, |steps| {
        // Both begin when the first step ends: whichever takes longer is waited for.
        let [first, short, long, last] = steps else { panic!("four steps") };
        let branch = if short.0 < long.0 { long } else { short };
        (first.0 + branch.0 + last.0, first.1 + branch.1 + last.1)
    });
}

#[test]
fn what_waits_in_a_step_and_how_long_is_seen() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let inner = ensemble(ONE, &["m: x=X -> y=Y"]);
    let config = inner
        .config
        .replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 1");
    let repository = repository
        .with("m", gate.model("FP32[4]"))
        .with("e", crate::support::Model { config, ..inner });
    let server = Server::start(repository);
    let labels = ["ensemble=\"e\"", "model=\"m\"", "step=\"0\""];
    let now = |name: &str| server.metric(&format!("troupe_ensemble_step_{name}"), &labels).unwrap();
    assert_eq!((now("in_flight"), now("queue_depth"), now("oldest_seconds")), (0.0, 0.0, 0.0));
    let request = floats(&[("X", &[1.0, 2.0, 3.0, 4.0])]);
    let asked: Vec<_> = (0..3).map(|_| server.http.start("e", &request)).collect();
    gate.is_reached();
    until("two to wait", || now("queue_depth") == 2.0);
    assert_eq!(now("in_flight"), 1.0);
    let age = now("oldest_seconds");
    assert!(0.0 < age);
    until("the oldest to age", || age + 0.02 < now("oldest_seconds"));
    gate.let_through(3);
    asked.into_iter().for_each(|it| {
        finish(it).ok();
    });
    assert_eq!((now("in_flight"), now("queue_depth"), now("oldest_seconds")), (0.0, 0.0, 0.0));
    // The last one waited for the others, and longer than nothing.
    let waited = sum(&server, "troupe_ensemble_step_queue_seconds", &labels);
    assert!(age < waited, "waited {waited} s, one alone {age} s");
}

#[test]
fn sizes_of_batches_and_load_times_are_shown_and_go_with_the_model() {
    let model = native("identity", "x:FP32[1] -> y:FP32[1]").batch(8);
    let server = Server::explicit(Repository::of([("m", model)]));
    server.load("m").ok();
    for values in [&[1.0f32][..], &[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]] {
        server.infer("m", &rows(&[("x", values)])).ok();
    }
    let labels = ["model=\"m\""];
    let bucket = |le: &str| {
        server.metric("troupe_inference_batch_size_bucket", &[labels[0], &format!("le=\"{le}\"")])
    };
    assert_eq!((bucket("1"), bucket("2"), bucket("4")), (Some(1.0), Some(1.0), Some(3.0)));
    assert_eq!(sum(&server, "troupe_inference_batch_size", &labels), 7.0);
    assert!(0.0 < server.metric("nv_model_load_duration_secs", &labels).unwrap());
    server.unload("m").ok();
    until("the series to go", || {
        !server.metrics.get("/metrics").ok().text().contains("model=\"m\"")
    });
}

#[test]
fn latencies_are_shown_as_they_are_asked_for() {
    let control = "model_metrics { metric_control { \
                   metric_identifier { family: 'nv_inference_first_response_histogram_ms' } \
                   histogram_options { buckets: [0, 1000] } } }";
    let unknown = "model_metrics { metric_control { metric_identifier { family: 'x' } \
                   histogram_options { buckets: 1 } } }";
    let repository = Repository::of([
        ("own", delay(3, FLOATS).with(control)),
        ("e", ensemble(ONE, &["own: x=X -> y=Y"]).with(unknown)),
    ]);
    let server = Server::with(
        repository,
        &[
            "--metrics-config=counter_latencies=false",
            "--metrics-config=histogram_latencies=true",
            "--metrics-config=summary_latencies=true",
            "--metrics-config=summary_quantiles=0.25:0.05,x,0.75:0.01",
            "--metrics-config=unknown=1",
        ],
    );
    ask(&server, "e");
    let page = server.metrics.get("/metrics").ok().text();
    let histogram = "nv_inference_first_response_histogram_ms";
    for line in [
        format!("{histogram}_bucket{{model=\"e\",version=\"1\",le=\"100\"}} 1"),
        format!("{histogram}_bucket{{model=\"e\",version=\"1\",le=\"5000\"}} 1"),
        format!("{histogram}_bucket{{model=\"own\",version=\"1\",le=\"0\"}} 0"),
        format!("{histogram}_bucket{{model=\"own\",version=\"1\",le=\"1000\"}} 1"),
        "nv_inference_request_summary_us_count{model=\"own\",version=\"1\"} 1".to_owned(),
    ] {
        assert!(page.lines().any(|it| it == line), "no {line} in\n{page}");
    }
    for quantile in ["0.25", "0.75"] {
        let labels = ["model=\"own\"", &format!("quantile=\"{quantile}\"")];
        let median = server.metric("nv_inference_request_summary_us", &labels).unwrap();
        assert!(2900.0 < median, "{median} us");
    }
    assert!(!page.contains("_duration_us"), "{page}");
    assert!(!page.contains("nv_cache"), "{page}");
    for text in [
        "Invalid option: [x]. No ':' delimiter found. Expected format is <quantile>:<error>",
        "--metrics-config=unknown=1 has no effect here",
        "Metric family 'x' in 'metric_identifier' is not a customizable metric in Triton core.",
    ] {
        server.logged(text);
    }
}

#[test]
fn nothing_but_counters_is_shown_unless_asked_for() {
    let server = Server::with(
        Repository::of([("m", native("identity", FLOATS))]),
        &["--allow-cpu-metrics=false", "--allow-gpu-metrics=false"],
    );
    let page = server.metrics.get("/metrics").ok().text();
    for family in ["nv_cpu", "nv_gpu", "nv_energy", "_summary_", "first_response", "nv_cache"] {
        assert!(!page.contains(family), "{family} in\n{page}");
    }
    for family in ["nv_inference_request_duration_us{", "nv_pinned_memory_pool_total_bytes 0"] {
        assert!(page.contains(family), "no {family} in\n{page}");
    }
}

#[test]
fn the_machine_is_watched() {
    let server = Server::with(
        Repository::of([("m", native("identity", FLOATS))]),
        &["--metrics-interval-ms=20"],
    );
    let value = |name: &str| {
        let page = server.metrics.get("/metrics").ok().text();
        let line = page.lines().find(|it| it.starts_with(&format!("{name} ")))?;
        line.rsplit_once(' ')?.1.parse::<f64>().ok()
    };
    until("a look at the CPU", || value("nv_cpu_utilization").is_some());
    let use_of_cpu = value("nv_cpu_utilization").unwrap();
    assert!((0.0..=1.0).contains(&use_of_cpu), "{use_of_cpu}");
    let memory = ["total", "used"].map(|it| value(&format!("nv_cpu_memory_{it}_bytes")).unwrap());
    assert!(0.0 < memory[1] && memory[1] < memory[0], "{memory:?}");
    // It is looked at again.
    until("another look", || value("nv_cpu_utilization") != Some(use_of_cpu));
}

#[test]
fn metrics_are_not_counted_for_nobody() {
    let refused = Server::fails(&Repository::new(), &["--metrics-config=summary_latencies"]);
    let text = "--metrics-config option format is <setting>=<value>. Got summary_latencies";
    assert!(refused.output.contains(text), "{}", refused.output);
    let refused = Server::fails(&Repository::new(), &["--metrics-interval-ms=0"]);
    assert!(refused.output.contains("--metrics-interval-ms"), "{}", refused.output);
}

/// Answers with one response per element, and an error where it is negative; then the end.
const RESPONDS: &str = "
    for it in requests:
        sender = it.get_response_sender()
        for value in pb_utils.get_input_tensor_by_name(it, 'x').as_numpy():
            if value < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('no')))
            else:
                y = pb_utils.Tensor('y', np.array([value], np.float32))
                sender.send(pb_utils.InferenceResponse([y]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

#[test]
fn responses_of_decoupled_models_are_counted_by_position() {
    let model = execute("x:FP32[-1] -> y:FP32[-1]", RESPONDS);
    let server = Server::start(Repository::of([
        ("m", model.with("model_transaction_policy { decoupled: true }")),
        ("plain", native("identity", FLOATS)),
    ]));
    let mut grpc = Grpc::connect(server.grpc);
    for values in [&[1.0f32, 2.0][..], &[3.0, -1.0], &[]] {
        grpc.stream(vec![grpc_floats("m", &[("x", values)])]).unwrap();
    }
    let stats = server.stats("m");
    let counts = |index: &str| {
        let of = |name: &str| stats["response_stats"][index][name]["count"].as_u64().unwrap();
        ["success", "fail", "empty_response", "cancel", "compute_infer", "compute_output"].map(of)
    };
    assert_eq!(counts("0"), [2, 0, 1, 0, 2, 2], "{stats}");
    assert_eq!(counts("1"), [1, 1, 0, 0, 2, 2], "{stats}");
    assert_eq!(counts("2"), [0, 0, 2, 0, 0, 0], "{stats}");
    let first = &stats["response_stats"]["0"];
    let ns = |name: &str| first[name]["ns"].as_u64().unwrap();
    assert!(0 < ns("compute_infer") && 0 < ns("compute_output"), "{stats}");
    assert_eq!(ns("compute_infer") + ns("compute_output"), ns("success"), "{stats}");
    assert_eq!(stats["memory_usage"], json!([]));
    assert_eq!(server.stats("plain")["response_stats"], json!({}));
    let request = troupe_proto::inference::ModelStatisticsRequest {
        name: "m".to_owned(),
        version: String::new(),
    };
    let same = grpc.call(async |it| it.model_statistics(request).await).unwrap();
    let same = &same.model_stats[0].response_stats["0"];
    assert_eq!(same.success.unwrap().ns, ns("success"));
    assert_eq!(same.empty_response.unwrap().count, 1);
}
