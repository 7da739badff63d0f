//! Turns a finished trace into OpenTelemetry spans, with Triton's names where it has them.

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

/// Spans of a model that executed: its own, those of its phases, and perhaps that of the batch.
const SPANS_OF_EXECUTION: usize = 7;

/// Makes spans; numbers requests of models as Triton does.
pub(super) struct Spans {
    scope: InstrumentationScope,
    last_number: i64,
}

/// How many spans it will be, at most.
pub(super) fn count(finished: &FinishedTrace) -> usize {
    let model_spans = finished.model_spans.iter();
    1 + model_spans
        .map(|it| if it.execution.is_some() { SPANS_OF_EXECUTION } else { 1 })
        .sum::<usize>()
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
        let model_spans = &finished.model_spans;
        let numbers: HashMap<u64, i64> = model_spans
            .iter()
            .zip(self.last_number + 1..)
            .map(|(it, number)| (it.id, number))
            .collect();
        self.last_number += model_spans.len() as i64;
        let by_id: HashMap<u64, &ModelSpan> = model_spans.iter().map(|it| (it.id, it)).collect();
        let request =
            SpanBuilder { finished, scope: &self.scope, clock: WallClock::now(), numbers, by_id };
        let mut spans = vec![request.root()];
        for model_span in model_spans {
            request.model(model_span, &mut spans);
        }
        spans
    }
}

/// The wall clock at any `Instant`; read once a trace, since it may be set meanwhile.
struct WallClock(Instant, SystemTime);

impl WallClock {
    fn now() -> WallClock {
        WallClock(Instant::now(), SystemTime::now())
    }

    fn at(&self, moment: Instant) -> SystemTime {
        match moment.checked_duration_since(self.0) {
            Some(after) => self.1 + after,
            None => self.1 - self.0.saturating_duration_since(moment),
        }
    }
}

/// Builds the spans of one trace.
struct SpanBuilder<'a> {
    finished: &'a FinishedTrace,
    scope: &'a InstrumentationScope,
    clock: WallClock,
    /// Triton numbers the requests of models.
    numbers: HashMap<u64, i64>,
    by_id: HashMap<u64, &'a ModelSpan>,
}

/// The start and the end of a span.
#[derive(Clone, Copy)]
struct Interval {
    start: Instant,
    end: Instant,
}

impl SpanBuilder<'_> {
    fn root(&self) -> SpanData {
        let FinishedTrace {
            parent, root, begun, ended, model_spans, marks, left_out, error, ..
        } = self.finished;
        let above = parent.as_ref().map_or(0, |it| it.span_id);
        let mut span =
            self.span("InferRequest", *root, above, Interval { start: *begun, end: *ended });
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

    fn model(&self, model_span: &ModelSpan, spans: &mut Vec<SpanData>) {
        let begun = model_span.start.at;
        let ended = model_span.ended.unwrap_or(self.finished.ended).max(begun);
        let name = model_span.start.model.to_string();
        let mut span = self.span(
            name,
            model_span.id,
            model_span.parent,
            Interval { start: begun, end: ended },
        );
        span.attributes = self.attributes(model_span);
        let events = &mut span.events.events;
        events.push(self.event("REQUEST_START", begun));
        events.push(self.event("QUEUE_START", begun));
        events.extend(model_span.cache_hit.map(|it| self.event("CACHE_HIT", it.at)));
        events.extend(model_span.responses.iter().map(|at| self.event("RESPONSE", *at)));
        if let Some(ended) = model_span.ended {
            events.push(self.event("REQUEST_END", ended));
        } else {
            span.attributes.push(KeyValue::new("troupe.unanswered", true));
        }
        if let Some(error) = &model_span.error {
            self.fail(&mut span, error, ended);
        }
        spans.push(span);
        if let Some(execution) = &model_span.execution {
            self.parts(model_span, Interval { start: begun, end: ended }, execution, spans);
            if execution.is_first_export() {
                spans.push(self.batch(model_span, execution));
            }
        }
    }

    fn attributes(&self, model_span: &ModelSpan) -> Vec<KeyValue> {
        let number = |id: &u64| self.numbers.get(id).copied();
        let mut all = vec![
            KeyValue::new("triton.model_name", model_span.start.model.clone()),
            KeyValue::new("triton.model_version", model_span.start.version),
        ];
        all.extend(number(&model_span.id).map(|it| KeyValue::new("triton.trace_id", it)));
        all.extend(
            number(&model_span.parent).map(|it| KeyValue::new("triton.trace_parent_id", it)),
        );
        if !model_span.start.request_id.is_empty() {
            all.push(KeyValue::new("triton.request_id", model_span.start.request_id.clone()));
        }
        let above = self.by_id.get(&model_span.parent).map(|it| it.start.model.clone());
        match (above, model_span.step) {
            (Some(ensemble), Some(step)) => {
                all.push(KeyValue::new("troupe.ensemble", ensemble));
                all.push(KeyValue::new("troupe.step", step as i64));
            }
            (Some(caller), None) => all.push(KeyValue::new("troupe.caller", caller)),
            (None, _) => (),
        }
        if let Some(hit) = model_span.cache_hit {
            let how = if hit.is_coalesced { "coalesced" } else { "hit" };
            all.push(KeyValue::new("troupe.cache", how));
        }
        if let Some(execution) = &model_span.execution {
            all.extend(execution_attributes(execution));
        }
        all
    }

    /// Where the time went. What lies outside the model span by a hair, as clocks are read apart,
    /// does not.
    fn parts(
        &self,
        model_span: &ModelSpan,
        interval: Interval,
        execution: &BatchExecution,
        spans: &mut Vec<SpanData>,
    ) {
        let Interval { start: begun, end: ended } = interval;
        let within = |at: Instant| at.clamp(begun, ended);
        let start = within(execution.begun);
        let [input, infer, output] = execution.moments().map(within);
        spans.push(self.span(
            "queue",
            span_id(),
            model_span.id,
            Interval { start: begun, end: start },
        ));
        let mut compute =
            self.span("compute", span_id(), model_span.id, Interval { start, end: output });
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
        for (name, interval) in [
            ("compute-input", Interval { start, end: input }),
            ("compute-infer", Interval { start: input, end: infer }),
            ("compute-output", Interval { start: infer, end: output }),
        ] {
            spans.push(self.span(name, span_id(), above, interval));
        }
    }

    /// The execution itself, linked to all requests in it.
    fn batch(&self, model_span: &ModelSpan, execution: &BatchExecution) -> SpanData {
        let (trace_id, above) =
            execution.links.first().copied().unwrap_or((self.finished.trace_id, model_span.id));
        let [.., ended] = execution.moments();
        let mut span = self.span(
            "batch",
            execution.id,
            above,
            Interval { start: execution.begun, end: ended },
        );
        span.span_context = self.context(trace_id, execution.id);
        span.attributes = vec![
            KeyValue::new("triton.model_name", model_span.start.model.clone()),
            KeyValue::new("triton.model_version", model_span.start.version),
        ];
        span.attributes.extend(execution_attributes(execution));
        span.links.links.extend(execution.links.iter().map(|(trace, id)| link(*trace, *id)));
        if let Some(error) = &model_span.error {
            self.fail(&mut span, error, ended);
        }
        span
    }

    fn span(
        &self,
        name: impl Into<Cow<'static, str>>,
        id: u64,
        parent: u64,
        Interval { start, end }: Interval,
    ) -> SpanData {
        SpanData {
            span_context: self.context(self.finished.trace_id, id),
            parent_span_id: SpanId::from(parent),
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
            KeyValue::new("exception.type", error_type(error.kind())),
            KeyValue::new("exception.message", text.clone()),
        ];
        let event = Event::new("exception", self.clock.at(at), attributes, 0);
        span.events.events.push(event);
        span.status = Status::error(text);
    }
}

fn execution_attributes(execution: &BatchExecution) -> [KeyValue; 3] {
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
fn error_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unknown => "Unknown",
        ErrorKind::Internal => "Internal",
        ErrorKind::NotFound => "Not found",
        ErrorKind::InvalidArg => "Invalid argument",
        ErrorKind::Unavailable | ErrorKind::Crashed => "Unavailable",
        ErrorKind::Unsupported => "Unsupported",
        ErrorKind::AlreadyExists => "Already exists",
        ErrorKind::Cancelled => "Cancelled",
        ErrorKind::DeadlineExceeded => "Deadline exceeded",
        ErrorKind::ResourceExhausted | ErrorKind::TooLarge => "Resource exhausted",
    }
}
