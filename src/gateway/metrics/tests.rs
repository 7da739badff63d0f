//! What a scrape reads, as text and over a socket.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::{
    settings::Settings,
    testing::{self, Nobody},
};
use troupe_base::{
    budget::{ByteBudget, Kind, Reason},
    config::{ServerFeatures, read_text},
    error::Error,
    metrics::{CountedTraits, LatencyMetrics},
    model::{Model, ModelParts},
    request::{Reply, Response},
    statistics::{Statistics, Timing},
    tensor::Owner,
};
use troupe_repository::{Catalog, ModelEntry, VersionEntry, VersionState};

const MODEL: &str = r#"
    name: "m" backend: "native" metric_tags { key: "te-am" value: "a\"b" }
    input { name: "a" data_type: TYPE_INT32 dims: 1 }
    output { name: "x" data_type: TYPE_INT32 dims: 1 }
"#;

const COMPUTE_INPUT: &str =
    "Cumulative compute input duration in microseconds (does not include cached requests)";
const COMPUTE_INFER: &str =
    "Cumulative compute inference duration in microseconds (does not include cached requests)";
const COMPUTE_OUTPUT: &str = "Cumulative inference compute output duration in microseconds (does not \
                              include cached requests)";

fn model() -> Arc<Model> {
    counting(Arc::default())
}

fn counting(stats: Arc<Statistics>) -> Arc<Model> {
    let config = read_text(MODEL, "config.pbtxt").unwrap().finish(&ServerFeatures::default());
    let parts = ModelParts {
        config: Arc::new(config.unwrap()),
        version: 2,
        stats,
        health: Arc::default(),
        steps: Vec::new(),
    };
    Arc::new(Model::new(parts, Arc::new(Nobody)))
}

fn catalog(model: &Arc<Model>) -> Catalog {
    let version = VersionEntry {
        model: Some(model.clone()),
        state: VersionState::Ready,
        reason: String::new(),
    };
    let entry = ModelEntry { versions: BTreeMap::from([(2, version)]), ..ModelEntry::default() };
    Catalog { entries: BTreeMap::from([("m".into(), entry)]) }
}

/// One request of 3 rows that took the given microseconds, one that failed, one that waits.
fn use_it(model: &Model) {
    let us = Duration::from_micros;
    let timing =
        Timing { queue: us(1), compute_input: us(2), compute_infer: us(3), compute_output: us(4) };
    model.stats.execution(3, &timing, std::time::Instant::now());
    model.stats.success(&timing, us(20));
    let (reply, _) = Reply::channel();
    reply.counted(model.stats.clone()).answer(Err::<Response, _>(Error::cancelled()));
    model.stats.pending.store(1, Relaxed);
    model.stats.loaded(Duration::from_secs(3));
}

#[test]
fn counters_have_tritons_names_labels_and_texts() {
    let model = model();
    use_it(&model);
    let text = render(&catalog(&model), &Metrics::new(), &testing::settings("here")).unwrap();
    let labels = r#"_te_am="a\"b",model="m",version="2""#;
    for (name, kind, help, value) in [
        (
            "nv_inference_request_success",
            "counter",
            "Number of successful inference requests, all batch sizes",
            1,
        ),
        (
            "nv_inference_count",
            "counter",
            "Number of inferences performed (does not include cached requests)",
            3,
        ),
        (
            "nv_inference_exec_count",
            "counter",
            "Number of model executions performed (does not include cached requests)",
            1,
        ),
        (
            "nv_inference_request_duration_us",
            "counter",
            "Cumulative inference request duration in microseconds (includes cached requests)",
            20,
        ),
        (
            "nv_inference_queue_duration_us",
            "counter",
            "Cumulative inference queuing duration in microseconds (includes cached requests)",
            1,
        ),
        ("nv_inference_compute_input_duration_us", "counter", COMPUTE_INPUT, 2),
        ("nv_inference_compute_infer_duration_us", "counter", COMPUTE_INFER, 3),
        ("nv_inference_compute_output_duration_us", "counter", COMPUTE_OUTPUT, 4),
        (
            "nv_inference_pending_request_count",
            "gauge",
            "Instantaneous number of pending requests awaiting execution per-model.",
            1,
        ),
        ("nv_model_load_duration_secs", "gauge", "Model load time in seconds", 3),
    ] {
        let expected =
            format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{{labels}}} {value}\n");
        assert!(text.contains(&expected), "no\n{expected}in\n{text}");
    }
    let mut failures = String::from(
        "# HELP nv_inference_request_failure Number of failed inference requests, all batch \
         sizes\n# TYPE nv_inference_request_failure counter\n",
    );
    for (reason, count) in
        [("REJECTED", 0), ("CANCELED", 1), ("BACKEND", 0), ("CRASHED", 0), ("OTHER", 0)]
    {
        failures +=
            &format!("nv_inference_request_failure{{{labels},reason=\"{reason}\"}} {count}\n");
    }
    assert!(text.contains(&failures), "no\n{failures}in\n{text}");
}

#[test]
fn histograms_and_summaries_are_there_if_asked_for() {
    let latencies = LatencyMetrics {
        counters: false,
        histograms: true,
        summaries: true,
        quantiles: vec![0.5, 0.99],
    };
    let metrics = Metrics::with(latencies);
    let model = counting(metrics.statistics(Some(&[10.0, 20.0]), CountedTraits::default()));
    use_it(&model);
    let text = render(&catalog(&model), &metrics, &testing::settings("here")).unwrap();
    let labels = r#"_te_am="a\"b",model="m",version="2""#;
    let summary = |name: &str, help: &str, value: u64| {
        format!(
            "# HELP {name} {help}\n# TYPE {name} summary\n\
             {name}{{{labels},quantile=\"0.5\"}} {value}\n\
             {name}{{{labels},quantile=\"0.99\"}} {value}\n\
             {name}_sum{{{labels}}} {value}\n{name}_count{{{labels}}} 1\n"
        )
    };
    let name = "nv_inference_first_response_histogram_ms";
    let histogram = format!(
        "# HELP {name} Duration from request to first response in milliseconds\n\
         # TYPE {name} histogram\n\
         {name}_bucket{{{labels},le=\"10\"}} 1\n{name}_bucket{{{labels},le=\"20\"}} 1\n\
         {name}_bucket{{{labels},le=\"+Inf\"}} 1\n\
         {name}_sum{{{labels}}} 0\n{name}_count{{{labels}}} 1\n"
    );
    let request =
        "Summary of inference request duration in microseconds (includes cached requests)";
    let queue = "Summary of inference queuing duration in microseconds (includes cached requests)";
    for expected in [
        summary("nv_inference_request_summary_us", request, 20),
        summary("nv_inference_queue_summary_us", queue, 1),
        summary("nv_inference_compute_input_summary_us", COMPUTE_INPUT, 2),
        summary("nv_inference_compute_infer_summary_us", COMPUTE_INFER, 3),
        summary("nv_inference_compute_output_summary_us", COMPUTE_OUTPUT, 4),
        histogram,
    ] {
        assert!(text.contains(&expected), "no\n{expected}in\n{text}");
    }
    assert!(text.contains("nv_inference_request_success{"), "{text}");
    assert!(!text.contains("_duration_us"), "{text}");
}

#[test]
fn sizes_of_executions_are_a_histogram() {
    let model = model();
    for rows in [1, 2, 2, 5, 300] {
        model.stats.execution(rows, &Timing::default(), std::time::Instant::now());
    }
    let text = render(&catalog(&model), &Metrics::new(), &testing::settings("here")).unwrap();
    let labels = r#"_te_am="a\"b",model="m",version="2""#;
    for (line, value) in [
        ("le=\"1\"", 1),
        ("le=\"2\"", 3),
        ("le=\"4\"", 3),
        ("le=\"8\"", 4),
        ("le=\"256\"", 4),
        ("le=\"+Inf\"", 5),
    ] {
        let line = format!("troupe_inference_batch_size_bucket{{{labels},{line}}} {value}\n");
        assert!(text.contains(&line), "no {line}in\n{text}");
    }
    assert!(text.contains(&format!("troupe_inference_batch_size_sum{{{labels}}} 310\n")));
}

#[test]
fn the_number_of_instances_is_told_and_its_changes_where_there_are_some() {
    let model = model();
    model.health.join();
    model.health.join();
    let text = || render(&catalog(&model), &Metrics::new(), &testing::settings("here")).unwrap();
    let labels = r#"_te_am="a\"b",model="m",version="2""#;
    let gauge = format!("\ntroupe_instances{{{labels}}} 2\n");
    assert!(text().contains(&gauge), "no {gauge}in\n{}", text());
    assert!(!text().contains("troupe_instance_scalings_total"));
    model.stats.scalings.up.store(3, Relaxed);
    for (direction, count) in [("up", 3), ("down", 0)] {
        let line = format!(
            "\ntroupe_instance_scalings_total{{{labels},direction=\"{direction}\"}} {count}\n"
        );
        assert!(text().contains(&line), "no {line}in\n{}", text());
    }
}

#[test]
fn an_ensemble_shows_the_queues_of_its_steps() {
    let step = model();
    use_it(&step);
    let text = r#"
        name: "e" platform: "ensemble"
        input { name: "A" data_type: TYPE_INT32 dims: 1 }
        output { name: "X" data_type: TYPE_INT32 dims: 1 }
        ensemble_scheduling { step {
            model_name: "m" model_version: -1
            input_map { key: "a" value: "A" } output_map { key: "x" value: "X" }
        } }
    "#;
    let config = read_text(text, "config.pbtxt").unwrap().finish(&ServerFeatures::default());
    let parts = ModelParts {
        config: Arc::new(config.unwrap()),
        version: 2,
        stats: Arc::default(),
        health: Arc::default(),
        steps: vec![step],
    };
    let ensemble = Arc::new(Model::new(parts, Arc::new(Nobody)));
    let metrics = Metrics::new();
    let series = metrics.step("e", 0, "m");
    series.started(std::time::Instant::now());
    let _waits = series.waits();
    let budget = ByteBudget::new(100);
    budget.take_beyond(Kind::Tensors, 30);
    budget.count_refusal(Reason::ModelBytes);
    let settings = Settings { budget, ..testing::settings("here") };
    let _segment = settings.segments.take(1, Owner::default()).unwrap();
    let text = render(&catalog(&ensemble), &metrics, &settings).unwrap();
    for line in [
        r#"troupe_ensemble_step_queue_depth{ensemble="e",model="m",step="0"} 2"#,
        r#"troupe_ensemble_step_in_flight{ensemble="e",model="m",step="0"} 1"#,
        "troupe_python_shared_memory_bytes 65536",
        r#"troupe_inflight_bytes{kind="tensors"} 30"#,
        r#"troupe_inflight_bytes{kind="received"} 0"#,
        "troupe_inflight_bytes_limit 100",
        r#"troupe_requests_refused_total{reason="model_bytes"} 1"#,
        r#"troupe_requests_refused_total{reason="server_bytes"} 0"#,
    ] {
        assert!(text.lines().any(|it| it == line), "no `{line}` in\n{text}");
    }
}

async fn ask(address: std::net::SocketAddr, what: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[actix_web::test]
async fn the_endpoint_answers_get_and_nothing_else() {
    let state = testing::state("here", catalog(&model()), Arc::new(Nobody));
    let any_port: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let one = testing::this_thread();
    let (gateway, addresses) =
        MetricsGateway::start(&state, &Metrics::new(), &[any_port.into()], &one).unwrap();
    let address = addresses[0].tcp().unwrap();
    let answer = ask(address, "GET /metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: text/plain; charset=utf-8\r\n"), "{answer}");
    assert!(answer.contains("\nnv_inference_count{"), "{answer}");
    for (what, status) in [("POST /metrics", "405"), ("PUT /metrics", "405"), ("GET /x", "404")] {
        let answer = ask(address, what).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {answer}");
    }
    // Series go with their model.
    state.repository.catalog.store(Arc::default());
    let answer = ask(address, "GET /metrics").await;
    assert!(answer.ends_with("\ntroupe_python_shared_memory_bytes 0\n"), "{answer}");
    assert!(!answer.contains("nv_inference"), "{answer}");
    gateway.send(StopMetrics).await.unwrap();
}
