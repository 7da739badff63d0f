//! Sends spans to a collector from a thread of its own; what finds no room is dropped and counted.

use std::{
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

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
    spans::{self, Spans},
};
use troupe_base::trace::{FinishedTrace, TraceSink};

/// What is lost is said no more often than that.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// What waits for the next export.
pub(super) struct Exporter {
    queue: Mutex<Queue>,
    /// Enough waits, or the end has come.
    wake: Notify,
    /// Spans that wait at most.
    most: usize,
    /// So many spans are not kept waiting.
    enough: usize,
}

#[derive(Default)]
struct Queue {
    finished: Vec<Arc<FinishedTrace>>,
    spans: usize,
    dropped: usize,
    /// Told once all that waits is sent.
    end: Option<oneshot::Sender<()>>,
}

impl Exporter {
    /// Starts the thread. It ends with the process, or when told to.
    pub(super) fn start(collector: Collector) -> Result<Arc<Exporter>, String> {
        let exporter = Arc::new(Exporter {
            queue: Mutex::default(),
            wake: Notify::new(),
            most: collector.queue,
            enough: collector.batch,
        });
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot export spans: {error}"))?;
        // Clients of HTTP and gRPC are bound to the runtime they were made in.
        let client = {
            let _inside = runtime.enter();
            collector.exporter()?
        };
        let sender = Sender::new(client, collector);
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

impl TraceSink for Exporter {
    fn take(&self, finished: Arc<FinishedTrace>) {
        let more = spans::count(&finished);
        let mut queue = self.queue.lock();
        // One that is larger than the whole queue is taken if nothing else waits.
        if self.most < queue.spans + more && queue.spans != 0 {
            queue.dropped += more;
            return;
        }
        let was_enough = self.enough <= queue.spans;
        queue.spans += more;
        queue.finished.push(finished);
        if !was_enough && self.enough <= queue.spans {
            self.wake.notify_one();
        }
    }
}

/// The thread's own part.
struct Sender {
    client: SpanExporter,
    collector: Collector,
    spans: Spans,
    /// Not said yet.
    dropped: usize,
    unsent: usize,
    why: String,
    said: Option<Instant>,
}

impl Sender {
    fn new(client: SpanExporter, collector: Collector) -> Sender {
        let spans = Spans::new();
        let why = String::new();
        Sender { client, collector, spans, dropped: 0, unsent: 0, why, said: None }
    }

    async fn run(mut self, exporter: &Exporter) {
        loop {
            tokio::select! {
                () = exporter.wake.notified() => (),
                () = sleep(self.collector.delay) => (),
            }
            let Queue { finished, dropped, end, .. } = mem::take(&mut *exporter.queue.lock());
            self.dropped += dropped;
            self.send(&finished).await;
            self.say(end.is_some());
            if let Some(end) = end {
                // The server may not wait any longer.
                let _ = end.send(());
                return;
            }
        }
    }

    async fn send(&mut self, finished: &[Arc<FinishedTrace>]) {
        let mut waiting = Vec::new();
        for one in finished {
            waiting.extend(self.spans.of(one));
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
            self.why = error.to_string();
        }
    }

    fn say(&mut self, is_end: bool) {
        let is_time = self.said.is_none_or(|it| SAID_EVERY <= it.elapsed());
        if self.dropped + self.unsent == 0 || !(is_time || is_end) {
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
        self.said = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::trace::{Span, SpanStart, TraceContext, TraceRecord};

    /// The record of a request with so many visits that were not executed.
    fn finish(exporter: &Arc<Exporter>, visits: usize) {
        let begun = Instant::now();
        let record = TraceRecord::new(TraceContext::default(), begun, vec![exporter.clone()]);
        let root = Span::root(Arc::new(record));
        for _ in 0..visits {
            let (model, request_id) = ("m".into(), String::new());
            root.begin(SpanStart { model, version: 1, is_ensemble: false, request_id, at: begun });
        }
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let (queue, wake) = (Mutex::default(), Notify::new());
        let exporter = Arc::new(Exporter { queue, wake, most: 10, enough: 5 });
        // Larger than all there is, but alone.
        finish(&exporter, 20);
        finish(&exporter, 0);
        let Queue { finished, spans, dropped, .. } = mem::take(&mut *exporter.queue.lock());
        assert_eq!((finished.len(), spans, dropped), (1, 21, 1));
        (0..4).for_each(|_| finish(&exporter, 2));
        let queue = exporter.queue.lock();
        assert_eq!((queue.finished.len(), queue.spans, queue.dropped), (3, 9, 3));
    }
}
