//! The access log: a line about each inference, with the microseconds of every step.

use std::{fmt::Write, sync::Arc, time::Instant};

use super::request_trace::Protocol;
use crate::settings::Settings;
use troupe_base::{
    error::StepError,
    model::Model,
    trace::{ModelSpan, TraceRecord, span_paths},
};
use troupe_observability::log::{FieldValue, Log};

/// A line has so many steps.
const MAX_STEPS: usize = 64;

/// What is known so far of one request; its line is written when this is dropped. Without an access
/// log there is nothing in it.
#[derive(Default)]
pub(crate) struct AccessLine(Option<Box<LineParts>>);

struct LineParts {
    log: Log,
    protocol: &'static str,
    model: String,
    version: String,
    id: Arc<str>,
    begun: Instant,
    record: Option<Arc<TraceRecord>>,
    received: usize,
    sent: usize,
    /// As the protocol has it; until there is one, that of a client who has gone.
    status: u16,
}

impl AccessLine {
    /// A request has come.
    pub(super) fn begin(settings: &Settings, protocol: &Protocol) -> AccessLine {
        AccessLine(settings.access_log.then(|| {
            Box::new(LineParts {
                log: settings.log.clone(),
                protocol: protocol.name,
                model: String::new(),
                version: String::new(),
                id: "".into(),
                begun: Instant::now(),
                record: None,
                received: 0,
                sent: 0,
                status: protocol.status_of_gone,
            })
        }))
    }

    /// Is there a line to write?
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The model and version as the client wrote them.
    pub(crate) fn names(&mut self, model: &str, version: Option<i64>) {
        if let Some(parts) = &mut self.0 {
            parts.model = model.to_owned();
            parts.version = version.map_or_else(String::new, |number| number.to_string());
        }
    }

    /// The model that works on it, and the client's id; when the request came, if there is a line.
    pub(super) fn works(&mut self, model: &Model, id: &str) -> Option<Instant> {
        let parts = self.0.as_mut()?;
        parts.version = model.version.to_string();
        parts.id = StepError::request_id(id);
        Some(parts.begun)
    }

    /// Where the times of the steps are.
    pub(super) fn notes(&mut self, record: &Arc<TraceRecord>) {
        if let Some(parts) = &mut self.0 {
            parts.record = Some(record.clone());
        }
    }

    /// So many bytes came in.
    pub(crate) fn received(&mut self, bytes: usize) {
        if let Some(parts) = &mut self.0 {
            parts.received += bytes;
        }
    }

    /// So many bytes go out.
    pub(crate) fn sent(&mut self, bytes: usize) {
        if let Some(parts) = &mut self.0 {
            parts.sent += bytes;
        }
    }

    /// How it ended, as the protocol says it.
    pub(crate) fn ended(&mut self, status: u16) {
        if let Some(parts) = &mut self.0 {
            parts.status = status;
        }
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        let Some(parts) = self.0.take() else { return };
        let LineParts { log, protocol, model, version, id, begun, record, .. } = *parts;
        let now = Instant::now();
        let mut fields: Vec<(&'static str, FieldValue)> = vec![
            ("protocol", protocol.into()),
            ("model", (&*model).into()),
            ("version", (&*version).into()),
            ("request_id", (&*id).into()),
            ("status", u64::from(parts.status).into()),
            ("bytes_in", (parts.received as u64).into()),
            ("bytes_out", (parts.sent as u64).into()),
            ("total_us", micros(begun, now).into()),
        ];
        if let Some(record) = record {
            fields.extend(times(&record));
        }
        log.access(fields);
    }
}

fn micros(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_micros() as u64
}

/// Queue and compute of a model that executes; the steps of one that asks others.
fn times(record: &TraceRecord) -> Vec<(&'static str, FieldValue)> {
    let spans = record.model_spans();
    let mut fields = Vec::new();
    if let Some(execution) = spans.first().and_then(|it| it.execution.as_ref()) {
        let [.., ended] = execution.moments();
        fields.push(("queue_us", micros(spans[0].start.at, execution.begun).into()));
        fields.push(("compute_us", micros(execution.begun, ended).into()));
    }
    let steps = steps(record.root, &spans);
    if !steps.is_empty() {
        let (mut text, mut json) = (String::from("["), String::from("["));
        for (index, step) in steps.iter().enumerate() {
            let StepTime { place, model, queue, total } = step;
            let (space, comma) = if index == 0 { ("", "") } else { (" ", ",") };
            // Writing to a string cannot fail; names of models have no quotation marks.
            let _ = write!(text, "{space}{place}.{model}:{total}");
            let _ = write!(
                json,
                "{comma}{{\"step\":\"{place}\",\"model\":{},\"queue_us\":{queue},\"total_us\":{total}}}",
                serde_json::Value::from(*model)
            );
        }
        text.push(']');
        json.push(']');
        fields.push(("steps", FieldValue::Both { text, json }));
    }
    fields
}

/// The work of a model below the one the client asked.
struct StepTime<'a> {
    /// `1`, or `0.1` in an ensemble in an ensemble; `call` for what a model asked on its own.
    place: String,
    model: &'a str,
    queue: u64,
    total: u64,
}

/// Those that have ended, in the order they began.
fn steps(root: u64, spans: &[ModelSpan]) -> Vec<StepTime<'_>> {
    let mut steps = Vec::new();
    for (span, path) in span_paths(root, spans).take(MAX_STEPS).filter(|(_, path)| !path.is_empty())
    {
        let own = |it: &&ModelSpan| it.step.map_or_else(|| "call".to_owned(), |it| it.to_string());
        let place = path.iter().map(own).collect::<Vec<_>>().join(".");
        let Some(ended) = span.ended else { continue };
        let begun = span.start.at;
        let queue = span.execution.as_ref().map_or(0, |it| micros(begun, it.begun));
        steps.push(StepTime {
            place,
            model: &span.start.model,
            queue,
            total: micros(begun, ended),
        });
    }
    steps
}
