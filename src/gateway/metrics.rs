//! The metrics gateway: `GET /metrics` in Prometheus's text format, counters under Triton's names.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::atomic::Ordering::Relaxed};

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture};
use actix_web::{
    App, HttpResponse, HttpServer,
    dev::ServerHandle,
    http::header,
    web::{self, Data},
};
use prometheus::{
    TextEncoder,
    proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType},
};

use super::{Gate, dashboard};
use crate::{
    metrics::{Metrics, label, step_labels},
    model::Model,
    repository::Catalog,
    statistics::{Reason, Statistics},
};

/// A family of series, one for each ready model.
struct Row {
    name: &'static str,
    help: &'static str,
    value: fn(&Statistics) -> u64,
}

const COUNTERS: [Row; 8] = [
    Row {
        name: "nv_inference_request_success",
        help: "Number of successful inference requests, all batch sizes",
        value: |it| it.success.count(),
    },
    Row {
        name: "nv_inference_count",
        help: "Number of inferences performed (does not include cached requests)",
        value: |it| it.inference_count.load(Relaxed),
    },
    Row {
        name: "nv_inference_exec_count",
        help: "Number of model executions performed (does not include cached requests)",
        value: |it| it.execution_count.load(Relaxed),
    },
    Row {
        name: "nv_inference_request_duration_us",
        help: "Cumulative inference request duration in microseconds (includes cached requests)",
        value: |it| it.success.ns() / 1000,
    },
    Row {
        name: "nv_inference_queue_duration_us",
        help: "Cumulative inference queuing duration in microseconds (includes cached requests)",
        value: |it| it.queue.ns() / 1000,
    },
    Row {
        name: "nv_inference_compute_input_duration_us",
        help: "Cumulative compute input duration in microseconds (does not include cached requests)",
        value: |it| it.compute_input.ns() / 1000,
    },
    Row {
        name: "nv_inference_compute_infer_duration_us",
        help: "Cumulative compute inference duration in microseconds (does not include cached \
               requests)",
        value: |it| it.compute_infer.ns() / 1000,
    },
    Row {
        name: "nv_inference_compute_output_duration_us",
        help: "Cumulative inference compute output duration in microseconds (does not include \
               cached requests)",
        value: |it| it.compute_output.ns() / 1000,
    },
];

const FAILURES: (&str, &str) =
    ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes");

const PENDING: (&str, &str) = (
    "nv_inference_pending_request_count",
    "Instantaneous number of pending requests awaiting execution per-model.",
);

const QUEUE_DEPTH: (&str, &str) = (
    "troupe_ensemble_step_queue_depth",
    "Requests that wait in the queue of the model an ensemble's step runs",
);

const MEMORY: (&str, &str) = (
    "troupe_python_shared_memory_bytes",
    "Bytes of shared memory for tensors, in use or kept for reuse, of the server and its workers",
);

/// The actor that owns the listener of the metrics and its connections.
pub struct MetricsGateway {
    server: ServerHandle,
}

impl MetricsGateway {
    /// Listens on every address and answers where; to be called on a thread of the actix system.
    pub fn start(
        gate: &Gate,
        metrics: &Metrics,
        addresses: &[SocketAddr],
    ) -> io::Result<(Addr<MetricsGateway>, Vec<SocketAddr>)> {
        let source = Data::new((gate.clone(), metrics.clone()));
        let pages = gate.clone();
        let mut server = HttpServer::new(move || {
            let methods = web::resource("/metrics").get(answer);
            App::new()
                .app_data(source.clone())
                .service(methods)
                .configure(|app| dashboard::configure(app, &pages))
        })
        .workers(1)
        .disable_signals();
        for address in addresses {
            server = server.bind(address)?;
        }
        let addresses = server.addrs();
        let server = server.run();
        let gateway = MetricsGateway { server: server.handle() };
        actix_rt::spawn(server);
        Ok((Actor::start(gateway), addresses))
    }
}

impl Actor for MetricsGateway {
    type Context = Context<Self>;
}

/// Stops accepting; answered once the answers under way are out.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Stop;

impl Handler<Stop> for MetricsGateway {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        Box::pin(self.server.stop(true))
    }
}

async fn answer(source: Data<(Gate, Metrics)>) -> HttpResponse {
    let (gate, metrics) = &**source;
    let memory = gate.settings.segments.bytes();
    match render(&gate.repository.catalog.load(), metrics, memory) {
        Ok(text) => HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, "text/plain; charset=utf-8"))
            .body(text),
        Err(error) => HttpResponse::InternalServerError().body(error.to_string()),
    }
}

/// Everything there is to tell, at this moment.
fn render(catalog: &Catalog, metrics: &Metrics, memory: usize) -> prometheus::Result<String> {
    let models: Vec<_> = catalog.ready_models().map(|it| (model_labels(it), &**it)).collect();
    let mut families = Vec::with_capacity(COUNTERS.len() + 8);
    for Row { name, help, value } in &COUNTERS {
        let series = models.iter().map(|(labels, it)| counter(labels.clone(), value(&it.stats)));
        families.push(family((name, help), MetricType::COUNTER, series.collect()));
    }
    let failures = models.iter().flat_map(|(labels, it)| failures(labels, &it.stats));
    families.insert(1, family(FAILURES, MetricType::COUNTER, failures.collect()));
    let pending =
        models.iter().map(|(labels, it)| gauge(labels.clone(), it.stats.pending.load(Relaxed)));
    families.push(family(PENDING, MetricType::GAUGE, pending.collect()));
    let depths = models.iter().flat_map(|(_, it)| queue_depths(it));
    families.push(family(QUEUE_DEPTH, MetricType::GAUGE, depths.collect()));
    families.push(family(MEMORY, MetricType::GAUGE, vec![gauge(Vec::new(), memory as u64)]));
    families.extend(metrics.gather());
    // The encoder refuses families without series.
    families.retain(|it| !it.get_metric().is_empty());
    TextEncoder::new().encode_to_string(&families)
}

fn model_labels(model: &Model) -> Vec<LabelPair> {
    let mut labels = BTreeMap::from([
        ("model".to_owned(), model.name().to_string()),
        ("version".to_owned(), model.version.to_string()),
    ]);
    for (key, value) in &model.config.metric_tags {
        let key = key.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '_' });
        labels.insert(format!("_{}", key.collect::<String>()), value.clone());
    }
    labels.iter().map(|(name, value)| label(name, value)).collect()
}

fn failures(labels: &[LabelPair], stats: &Statistics) -> [Metric; 4] {
    Reason::ALL.map(|reason| {
        let mut labels = labels.to_vec();
        labels.push(label("reason", reason.label()));
        counter(labels, stats.failures(reason))
    })
}

/// One gauge per step of an ensemble; nothing for other models.
fn queue_depths(model: &Model) -> Vec<Metric> {
    let steps = model.config.ensemble.iter().flat_map(|it| &it.steps).enumerate();
    let depth = |(index, step): (usize, &crate::config::StepConfig)| {
        let runs = |it: &&std::sync::Arc<Model>| **it.name() == *step.model;
        let at_its_place = model.steps.get(index).filter(runs);
        let step = at_its_place.or_else(|| model.steps.iter().find(runs))?;
        let labels = step_labels(model.name(), index, step.name());
        let labels = labels.iter().map(|(name, value)| label(name, value)).collect();
        Some(gauge(labels, step.stats.pending.load(Relaxed)))
    };
    steps.filter_map(depth).collect()
}

fn counter(labels: Vec<LabelPair>, value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::from_label(labels);
    metric.set_counter(counter);
    metric
}

fn gauge(labels: Vec<LabelPair>, value: u64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value as f64);
    let mut metric = Metric::from_label(labels);
    metric.set_gauge(gauge);
    metric
}

fn family((name, help): (&str, &str), kind: MetricType, series: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(series);
    family
}

#[cfg(test)]
mod tests;
