//! What was noted of a request as spans of OpenTelemetry, with Triton's names where it has them.

use std::{
    borrow::Cow,
    collections::HashMap,
    time::{Instant, SystemTime},
};

use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{Event, Link, SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use troupe_base::{
    error::{Error, ErrorKind},
    trace::{BatchExecution, FinishedTrace, ModelSpan, span_id},
};

/// Spans of a visit that was executed: its own, those of its parts, and perhaps that of the batch.
const OF_EXECUTED: usize = 7;

/// Makes spans; numbers requests of models as Triton does.
pub(super) struct Spans {
    scope: InstrumentationScope,
    last_number: i64,
}

/// How many spans it will be, at most.
pub(super) fn count(finished: &FinishedTrace) -> usize {
    let visits = finished.model_spans.iter();
    1 + visits.map(|it| if it.execution.is_some() { OF_EXECUTED } else { 1 }).sum::<usize>()
}

impl Spans {
    pub(super) fn new() -> Spans {
        let scope = InstrumentationScope::builder("triton-server");
        let scope = scope.with_version(env!("CARGO_PKG_VERSION")).build();
        Spans { scope, last_number: 0 }
    }

    /// `InferRequest`, under it a span for each model that worked for it, and of those that
    /// executed `queue`, `compute` and its parts. An execution is told of once, as `batch` in the
    /// trace of the first request in it.
    pub(super) fn of(&mut self, finished: &FinishedTrace) -> Vec<SpanData> {
        let visits = &finished.model_spans;
        let numbers: HashMap<u64, i64> =
            visits.iter().zip(self.last_number + 1..).map(|(it, number)| (it.id, number)).collect();
        self.last_number += visits.len() as i64;
        let by_id: HashMap<u64, &ModelSpan> = visits.iter().map(|it| (it.id, it)).collect();
        let request = Request { finished, scope: &self.scope, clock: Clock::now(), numbers, by_id };
        let mut spans = vec![request.root()];
        for visit in visits {
            request.visit(visit, &mut spans);
        }
        spans
    }
}

/// The wall clock at some moment: it may be set, so it is asked once for a whole trace.
struct Clock(Instant, SystemTime);

impl Clock {
    fn now() -> Clock {
        Clock(Instant::now(), SystemTime::now())
    }

    fn at(&self, moment: Instant) -> SystemTime {
        match moment.checked_duration_since(self.0) {
            Some(after) => self.1 + after,
            None => self.1 - self.0.saturating_duration_since(moment),
        }
    }
}

/// One request on its way to spans.
struct Request<'a> {
    finished: &'a FinishedTrace,
    scope: &'a InstrumentationScope,
    clock: Clock,
    /// Triton numbers the requests of models.
    numbers: HashMap<u64, i64>,
    by_id: HashMap<u64, &'a ModelSpan>,
}

/// Two moments, the second not before the first.
type Interval = (Instant, Instant);

impl Request<'_> {
    fn root(&self) -> SpanData {
        let FinishedTrace {
            parent, root, begun, ended, model_spans, marks, left_out, error, ..
        } = self.finished;
        let above = parent.as_ref().map_or(0, |it| it.span_id);
        let mut span = self.span("InferRequest", (*root, above), (*begun, *ended));
        span.parent_span_is_remote = parent.is_some();
        span.span_kind = SpanKind::Server;
        span.events.events.extend(marks.iter().map(|(name, at)| self.event(name, *at)));
        if 0 < *left_out {
            span.attributes.push(KeyValue::new("troupe.visits_left_out", *left_out as i64));
        }
        let first = model_spans.first().and_then(|it| it.error.as_ref());
        if let Some(error) = error.as_ref().or(first) {
            self.fail(&mut span, error, *ended);
        }
        span
    }

    fn visit(&self, visit: &ModelSpan, spans: &mut Vec<SpanData>) {
        let begun = visit.start.at;
        let ended = visit.ended.unwrap_or(self.finished.ended).max(begun);
        let name = visit.start.model.to_string();
        let mut span = self.span(name, (visit.id, visit.parent), (begun, ended));
        span.attributes = self.attributes(visit);
        let events = &mut span.events.events;
        events.push(self.event("REQUEST_START", begun));
        events.push(self.event("QUEUE_START", begun));
        events.extend(visit.responses.iter().map(|at| self.event("RESPONSE", *at)));
        if let Some(ended) = visit.ended {
            events.push(self.event("REQUEST_END", ended));
        } else {
            span.attributes.push(KeyValue::new("troupe.unanswered", true));
        }
        if let Some(error) = &visit.error {
            self.fail(&mut span, error, ended);
        }
        spans.push(span);
        if let Some(execution) = &visit.execution {
            self.parts(visit, (begun, ended), execution, spans);
            if execution.is_first_export() {
                spans.push(self.batch(visit, execution));
            }
        }
    }

    fn attributes(&self, visit: &ModelSpan) -> Vec<KeyValue> {
        let number = |id: &u64| self.numbers.get(id).copied();
        let mut all = vec![
            KeyValue::new("triton.model_name", visit.start.model.clone()),
            KeyValue::new("triton.model_version", visit.start.version),
        ];
        all.extend(number(&visit.id).map(|it| KeyValue::new("triton.trace_id", it)));
        all.extend(number(&visit.parent).map(|it| KeyValue::new("triton.trace_parent_id", it)));
        if !visit.start.request_id.is_empty() {
            all.push(KeyValue::new("triton.request_id", visit.start.request_id.clone()));
        }
        let above = self.by_id.get(&visit.parent).map(|it| it.start.model.clone());
        match (above, visit.step) {
            (Some(ensemble), Some(step)) => {
                all.push(KeyValue::new("troupe.ensemble", ensemble));
                all.push(KeyValue::new("troupe.step", step as i64));
            }
            (Some(caller), None) => all.push(KeyValue::new("troupe.caller", caller)),
            (None, _) => (),
        }
        if let Some(execution) = &visit.execution {
            all.extend(of_execution(execution));
        }
        all
    }

    /// Where the time went. What lies outside the visit by a hair, as clocks are read apart, does
    /// not.
    fn parts(
        &self,
        visit: &ModelSpan,
        (begun, ended): Interval,
        execution: &BatchExecution,
        spans: &mut Vec<SpanData>,
    ) {
        let within = |at: Instant| at.clamp(begun, ended);
        let start = within(execution.begun);
        let [input, infer, output] = execution.moments().map(within);
        spans.push(self.span("queue", (span_id(), visit.id), (begun, start)));
        let mut compute = self.span("compute", (span_id(), visit.id), (start, output));
        compute.events.events.extend([
            self.event("COMPUTE_START", start),
            self.event("COMPUTE_INPUT_END", input),
            self.event("COMPUTE_OUTPUT_START", infer),
            self.event("COMPUTE_END", output),
        ]);
        if let Some((trace_id, _)) = execution.links.first() {
            compute.links.links.push(link(*trace_id, execution.id));
        }
        let above = u64::from_be_bytes(compute.span_context.span_id().to_bytes());
        spans.push(compute);
        for (name, during) in [
            ("compute-input", (start, input)),
            ("compute-infer", (input, infer)),
            ("compute-output", (infer, output)),
        ] {
            spans.push(self.span(name, (span_id(), above), during));
        }
    }

    /// The execution itself, linked to all requests in it.
    fn batch(&self, visit: &ModelSpan, execution: &BatchExecution) -> SpanData {
        let (trace_id, above) =
            execution.links.first().copied().unwrap_or((self.finished.trace_id, visit.id));
        let [.., ended] = execution.moments();
        let mut span = self.span("batch", (execution.id, above), (execution.begun, ended));
        span.span_context = self.context(trace_id, execution.id);
        span.attributes = vec![
            KeyValue::new("triton.model_name", visit.start.model.clone()),
            KeyValue::new("triton.model_version", visit.start.version),
        ];
        span.attributes.extend(of_execution(execution));
        span.links.links.extend(execution.links.iter().map(|(trace, id)| link(*trace, *id)));
        if let Some(error) = &visit.error {
            self.fail(&mut span, error, ended);
        }
        span
    }

    fn span(
        &self,
        name: impl Into<Cow<'static, str>>,
        (id, above): (u64, u64),
        (start, end): Interval,
    ) -> SpanData {
        SpanData {
            span_context: self.context(self.finished.trace_id, id),
            parent_span_id: SpanId::from(above),
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: self.clock.at(start),
            end_time: self.clock.at(end),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn context(&self, trace_id: u128, id: u64) -> SpanContext {
        let state = self.finished.parent.as_ref().map(|it| it.state.parse());
        // A list that is none is not handed on.
        let state: TraceState = state.and_then(Result::ok).unwrap_or_default();
        let trace_id = TraceId::from(trace_id);
        SpanContext::new(trace_id, SpanId::from(id), TraceFlags::SAMPLED, false, state)
    }

    fn event(&self, name: &'static str, at: Instant) -> Event {
        Event::new(name, self.clock.at(at), Vec::new(), 0)
    }

    fn fail(&self, span: &mut SpanData, error: &Error, at: Instant) {
        let text = error.to_string();
        let attributes = vec![
            KeyValue::new("exception.type", kind(error.kind())),
            KeyValue::new("exception.message", text.clone()),
        ];
        let event = Event::new("exception", self.clock.at(at), attributes, 0);
        span.events.events.push(event);
        span.status = Status::error(text);
    }
}

fn of_execution(execution: &BatchExecution) -> [KeyValue; 3] {
    [
        KeyValue::new("troupe.instance", execution.instance.clone()),
        KeyValue::new("troupe.batch.requests", execution.requests as i64),
        KeyValue::new("troupe.batch.rows", i64::from(execution.rows)),
    ]
}

fn link(trace_id: u128, id: u64) -> Link {
    let (trace_id, id) = (TraceId::from(trace_id), SpanId::from(id));
    let state = TraceState::default();
    Link::new(SpanContext::new(trace_id, id, TraceFlags::SAMPLED, false, state), Vec::new(), 0)
}

/// Triton's words for its codes.
fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unknown => "Unknown",
        ErrorKind::Internal => "Internal",
        ErrorKind::NotFound => "Not found",
        ErrorKind::InvalidArg => "Invalid argument",
        ErrorKind::Unavailable => "Unavailable",
        ErrorKind::Unsupported => "Unsupported",
        ErrorKind::AlreadyExists => "Already exists",
        ErrorKind::Cancelled => "Cancelled",
        ErrorKind::DeadlineExceeded => "Deadline exceeded",
    }
}
