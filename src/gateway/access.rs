//! The access log: a line about each inference, with the microseconds of every step.

use std::{fmt::Write, sync::Arc, time::Instant};

use super::ServerState;
use troupe_base::{
    error::StepError,
    model::Model,
    request::Request,
    trace::{ModelSpan, Span, TraceContext, TraceRecord, span_paths},
};
use troupe_observability::log::{FieldValue, Log};

/// A line tells so many steps.
const MAX_STEPS: usize = 64;

/// What is known so far of one request; its line is written when this is dropped. Without an access
/// log there is nothing in it.
pub(super) struct Access(Option<Box<Entry>>);

struct Entry {
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

impl Access {
    /// A request has come; `gone` is the status of those whose clients do not wait for the answer.
    pub(super) fn begin(state: &ServerState, protocol: &'static str, gone: u16) -> Access {
        Access(state.settings.access_log.then(|| {
            Box::new(Entry {
                log: state.settings.log.clone(),
                protocol,
                model: String::new(),
                version: String::new(),
                id: "".into(),
                begun: Instant::now(),
                record: None,
                received: 0,
                sent: 0,
                status: gone,
            })
        }))
    }

    /// Nothing to write.
    pub(super) fn off() -> Access {
        Access(None)
    }

    /// Is there anything to note?
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The model and version as the client wrote them.
    pub(super) fn asked(&mut self, model: &str, version: Option<i64>) {
        if let Some(entry) = &mut self.0 {
            entry.model = model.to_owned();
            entry.version = version.map_or_else(String::new, |it| it.to_string());
        }
    }

    /// The model that works on it, and on what. It is noted from here on which steps it passes.
    pub(super) fn works(
        &mut self,
        model: &Model,
        traced: &Option<Arc<TraceRecord>>,
        request: &mut Request,
    ) {
        let Some(entry) = &mut self.0 else { return };
        entry.version = model.version.to_string();
        entry.id = StepError::request_id(&request.context.id);
        let own = || Arc::new(TraceRecord::new(TraceContext::default(), entry.begun, Vec::new()));
        let record = traced.clone().unwrap_or_else(own);
        request.context = Arc::new(request.context.under(Span::root(record.clone())));
        entry.record = Some(record);
    }

    /// So many bytes came in.
    pub(super) fn received(&mut self, bytes: usize) {
        if let Some(entry) = &mut self.0 {
            entry.received += bytes;
        }
    }

    /// So many bytes go out.
    pub(super) fn sent(&mut self, bytes: usize) {
        if let Some(entry) = &mut self.0 {
            entry.sent += bytes;
        }
    }

    /// How it ended, as the protocol says it.
    pub(super) fn ended(&mut self, status: u16) {
        if let Some(entry) = &mut self.0 {
            entry.status = status;
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let Some(entry) = self.0.take() else { return };
        let Entry { log, protocol, model, version, id, begun, record, .. } = *entry;
        let now = Instant::now();
        let mut fields: Vec<(&'static str, FieldValue)> = vec![
            ("protocol", protocol.into()),
            ("model", (&*model).into()),
            ("version", (&*version).into()),
            ("request_id", (&*id).into()),
            ("status", u64::from(entry.status).into()),
            ("bytes_in", (entry.received as u64).into()),
            ("bytes_out", (entry.sent as u64).into()),
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
    let visits = record.model_spans();
    let mut fields = Vec::new();
    if let Some(execution) = visits.first().and_then(|it| it.execution.as_ref()) {
        let [.., ended] = execution.moments();
        fields.push(("queue_us", micros(visits[0].start.at, execution.begun).into()));
        fields.push(("compute_us", micros(execution.begun, ended).into()));
    }
    let steps = steps(record.root, &visits);
    if !steps.is_empty() {
        let (mut text, mut json) = (String::from("["), String::from("["));
        for (index, step) in steps.iter().enumerate() {
            let Step { place, model, queue, total } = step;
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

/// A visit below the model the client asked.
struct Step<'a> {
    /// `1`, or `0.1` in an ensemble in an ensemble; `call` for what a model asked on its own.
    place: String,
    model: &'a str,
    queue: u64,
    total: u64,
}

/// Those that have ended, in the order they began.
fn steps(root: u64, visits: &[ModelSpan]) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for (visit, way) in span_paths(root, visits).take(MAX_STEPS).filter(|(_, way)| !way.is_empty())
    {
        let own = |it: &&ModelSpan| it.step.map_or_else(|| "call".to_owned(), |it| it.to_string());
        let place = way.iter().map(own).collect::<Vec<_>>().join(".");
        let Some(ended) = visit.ended else { continue };
        let begun = visit.start.at;
        let queue = visit.execution.as_ref().map_or(0, |it| micros(begun, it.begun));
        steps.push(Step { place, model: &visit.start.model, queue, total: micros(begun, ended) });
    }
    steps
}
