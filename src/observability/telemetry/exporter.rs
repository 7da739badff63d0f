//! Exports spans to a collector in batches, from a thread of its own behind a bounded queue.
//!
//! The SDK's `BatchSpanProcessor` is not used: it takes finished spans, which would be built on the
//! threads that serve instead of here; and its thread has no runtime of tokio, which the clients of
//! OTLP need.

use std::{mem, sync::Arc, thread};

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use parking_lot::Mutex;
use tokio::{
    runtime::Builder,
    sync::{Notify, oneshot},
    time::{sleep, timeout},
};

use super::{
    collector::Collector,
    collector_tls::SendFailure,
    spans::{self, Spans},
};
use crate::drop_queue::{DropQueue, Limits, ReportTimer};
use troupe_base::trace::{FinishedTrace, TraceSink};

/// The queue of traces for the next export.
pub(super) struct Exporter {
    queue: Mutex<ExportQueue>,
    /// Notified when enough waits, or at the end.
    wake: Notify,
    /// Spans that trigger an export before its time.
    batch_size: usize,
}

struct ExportQueue {
    traces: DropQueue<Arc<FinishedTrace>>,
    /// Notified once everything is sent.
    end: Option<oneshot::Sender<()>>,
}

impl Exporter {
    /// Starts the thread. It ends with the process, or when told to.
    pub(super) fn start(collector: Collector) -> Result<Arc<Exporter>, String> {
        let exporter = Arc::new(Exporter {
            queue: Mutex::new(ExportQueue::new(collector.queue)),
            wake: Notify::new(),
            batch_size: collector.batch,
        });
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot export spans: {error}"))?;
        // Clients of HTTP and gRPC are bound to the runtime they were made in.
        let failure = SendFailure::default();
        let client = {
            let _inside = runtime.enter();
            collector.exporter(&failure)
        };
        let client = match client {
            Ok(client) => client,
            Err(why) => {
                // A runtime that is dropped waits for its threads, and panics in an asynchronous
                // context: the server's start is one.
                runtime.shutdown_background();
                return Err(why);
            }
        };
        let sender = Sender::new(client, collector, failure);
        let queue = exporter.clone();
        thread::Builder::new()
            .name("spans".to_owned())
            .spawn(move || runtime.block_on(sender.run(&queue)))
            .map_err(|error| format!("cannot export spans: {error}"))?;
        Ok(exporter)
    }

    /// Has all that waits sent. The other end hears of it, or nothing if the thread has ended.
    pub(super) fn end(&self) -> oneshot::Receiver<()> {
        let (sender, sent) = oneshot::channel();
        self.queue.lock().end = Some(sender);
        self.wake.notify_one();
        sent
    }
}

impl ExportQueue {
    /// A queue for so many spans.
    fn new(max_spans: usize) -> ExportQueue {
        let max_items = usize::MAX;
        let limits = Limits { max_items, max_weight: max_spans, takes_oversized: true };
        ExportQueue { traces: DropQueue::new(limits), end: None }
    }
}

impl TraceSink for Exporter {
    fn take(&self, finished: Arc<FinishedTrace>) {
        let more = spans::count(&finished);
        let mut queue = self.queue.lock();
        let was_enough = self.batch_size <= queue.traces.weight();
        queue.traces.push(finished, more);
        if !was_enough && self.batch_size <= queue.traces.weight() {
            self.wake.notify_one();
        }
    }
}

/// The thread's own part.
struct Sender {
    client: SpanExporter,
    collector: Collector,
    failure: SendFailure,
    spans: Spans,
    /// Losses that are not reported yet: spans dropped by the queue, spans not sent, and why.
    dropped: usize,
    unsent: usize,
    why: String,
    report: ReportTimer,
}

impl Sender {
    fn new(client: SpanExporter, collector: Collector, failure: SendFailure) -> Sender {
        let spans = Spans::new();
        let why = String::new();
        Sender {
            client,
            collector,
            failure,
            spans,
            dropped: 0,
            unsent: 0,
            why,
            report: ReportTimer::default(),
        }
    }

    async fn run(mut self, exporter: &Exporter) {
        loop {
            tokio::select! {
                () = exporter.wake.notified() => (),
                () = sleep(self.collector.delay) => (),
            }
            let (traces, end) = {
                let mut queue = exporter.queue.lock();
                self.dropped += queue.traces.take_dropped().weight;
                (queue.traces.take_all(), queue.end.take())
            };
            self.send(traces).await;
            self.report_losses(end.is_some());
            if let Some(end) = end {
                // The server may not wait any longer.
                let _ = end.send(());
                return;
            }
        }
    }

    async fn send(&mut self, traces: impl Iterator<Item = Arc<FinishedTrace>>) {
        let mut waiting = Vec::new();
        for trace in traces {
            waiting.extend(self.spans.of(&trace));
            while self.collector.batch <= waiting.len() {
                let rest = waiting.split_off(self.collector.batch);
                self.export(mem::replace(&mut waiting, rest)).await;
            }
        }
        if !waiting.is_empty() {
            self.export(waiting).await;
        }
    }

    async fn export(&mut self, batch: Vec<SpanData>) {
        let count = batch.len();
        let result = timeout(self.collector.timeout, self.client.export(batch)).await;
        let result = result.unwrap_or(Err(opentelemetry_sdk::error::OTelSdkError::Timeout(
            self.collector.timeout,
        )));
        if let Err(error) = result {
            self.unsent += count;
            self.why = match self.failure.take() {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            };
        }
    }

    /// Reports losses: now and then, and at the end.
    fn report_losses(&mut self, is_end: bool) {
        if self.dropped + self.unsent == 0 || !(self.report.is_due() || is_end) {
            return;
        }
        let endpoint = &self.collector.endpoint;
        if 0 < self.unsent {
            let (count, why) = (mem::take(&mut self.unsent), mem::take(&mut self.why));
            tracing::warn!("{count} spans could not be sent to {endpoint} and are lost: {why}");
        }
        if 0 < self.dropped {
            let (count, most) = (mem::take(&mut self.dropped), self.collector.queue);
            tracing::warn!(
                "{count} spans were dropped: more than {most} waited to be sent to {endpoint} \
                 (--trace-config opentelemetry,bsp_max_queue_size=)"
            );
        }
        self.report.reported();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use troupe_base::trace::{Span, SpanStart, TraceContext, TraceRecord};
    use troupe_options::OpenTelemetry;

    /// The record of a request with so many model spans that were not executed.
    fn finish(exporter: &Arc<Exporter>, model_spans: usize) {
        let begun = Instant::now();
        let record = TraceRecord::new(TraceContext::default(), begun, vec![exporter.clone()]);
        let root = Span::root(Arc::new(record));
        for _ in 0..model_spans {
            let (model, request_id) = ("m".into(), String::new());
            root.begin(SpanStart { model, version: 1, is_ensemble: false, request_id, at: begun });
        }
    }

    #[test]
    fn a_wrong_file_of_tls_is_an_error_within_a_runtime() {
        let start = |variables: &[(&str, &str)]| {
            let find = |name: &str| {
                let found = variables.iter().find(|(it, _)| *it == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let collector = Collector::with(&OpenTelemetry::default(), &find).unwrap();
            let runtime = Builder::new_current_thread().build().unwrap();
            runtime.block_on(async { Exporter::start(collector).err().unwrap() })
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4318");
        for protocol in ["grpc", "http/protobuf"] {
            let protocol = ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
            for (name, path) in [
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/dev/null"),
                ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/nowhere"),
            ] {
                let error = start(&[(name, path), endpoint, protocol]);
                assert!(error.contains(name), "{error}");
                assert!(error.contains(path) || error.contains("alone"), "{error}");
            }
        }
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let (queue, wake) = (Mutex::new(ExportQueue::new(10)), Notify::new());
        let exporter = Arc::new(Exporter { queue, wake, batch_size: 5 });
        // Larger than all there is, but alone.
        finish(&exporter, 20);
        finish(&exporter, 0);
        let taken = || {
            let queue = &mut exporter.queue.lock().traces;
            let (spans, dropped) = (queue.weight(), queue.take_dropped().weight);
            (queue.take_all().count(), spans, dropped)
        };
        assert_eq!(taken(), (1, 21, 1));
        (0..4).for_each(|_| finish(&exporter, 2));
        assert_eq!(taken(), (3, 9, 3));
    }
}
