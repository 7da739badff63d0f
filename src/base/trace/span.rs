//! A position in a trace that is handed down with a request; models write what happens there into
//! the trace's record.

use std::{sync::Arc, time::Instant};

use serde_json::json;

use super::{
    execution::{BatchExecution, FinishedBatch},
    model_span::{CacheHit, ModelSpan, SpanStart},
    record::TraceRecord,
};
use crate::{
    error::{Error, Result},
    statistics::Timing,
    tensor::Tensor,
};

/// Responses of one model span whose times are kept; those of longer streams are not.
const MAX_RESPONSES: usize = 1024;

/// A position in a trace: the record of a client's request, and the span that is the parent of what
/// the request causes next.
#[derive(Clone, Debug)]
pub struct Span {
    record: Arc<TraceRecord>,
    id: u64,
    /// The model span's index in the record; `None` for the client's request itself.
    index: Option<usize>,
    /// The step of the ensemble that asks the next model.
    step: Option<usize>,
}

/// A model span that has not ended. Dropping it leaves the span without an end: unanswered.
#[derive(Debug)]
pub struct OpenSpan {
    span: Span,
    /// Names of the outputs to keep; empty unless the record has tensors.
    outputs: Vec<String>,
}

impl Span {
    /// The position of the client's request itself.
    pub fn root(record: Arc<TraceRecord>) -> Span {
        Span { id: record.root, record, index: None, step: None }
    }

    /// The record of the client's request.
    pub fn record(&self) -> &Arc<TraceRecord> {
        &self.record
    }

    /// The identifier of the trace.
    pub fn trace_id(&self) -> u128 {
        self.record.trace_id
    }

    /// The identifier of the span, the parent of the next ones.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The same position; the next model is asked by step `index` of an ensemble.
    pub fn at_step(&self, index: usize) -> Span {
        Span { step: Some(index), ..self.clone() }
    }

    /// Opens the span of a model that is asked; `None` once the record is full.
    pub fn begin(&self, start: SpanStart) -> Option<OpenSpan> {
        let (id, index) = self.record.begin(self.id, self.step, start)?;
        let span = Span { record: self.record.clone(), id, index: Some(index), step: None };
        Some(OpenSpan { span, outputs: Vec::new() })
    }

    /// Notes that the request of this span took part in an execution.
    pub fn executed(&self, execution: Arc<BatchExecution>) {
        self.change(|it| it.execution = Some(execution));
    }

    /// Notes that the request of this span was answered without an execution.
    pub fn hit(&self, hit: CacheHit) {
        self.change(|it| it.cache_hit = Some(hit));
    }

    /// The W3C trace context as a JSON object of headers, for model code that calls other services;
    /// `None` where nobody outside knows the trace.
    pub fn context(&self) -> Option<String> {
        let record = self.record();
        if !record.is_known {
            return None;
        }
        let parent = format!("00-{:032x}-{:016x}-01", self.trace_id(), self.id());
        let mut context = json!({ "traceparent": parent });
        let state = record.parent.as_ref().map_or("", |it| &*it.state);
        for (name, value) in [("tracestate", state), ("baggage", &*record.baggage)] {
            if !value.is_empty() {
                context[name] = value.into();
            }
        }
        Some(context.to_string())
    }

    fn change(&self, change: impl FnOnce(&mut ModelSpan)) {
        if let Some(index) = self.index {
            self.record.change(index, change);
        }
    }
}

impl OpenSpan {
    /// The position that the model hands on: what it asks or executes is below this span.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Keeps the inputs now, and the named outputs once they come.
    pub fn with_tensors(self, inputs: Vec<(String, Tensor)>, outputs: Vec<String>) -> OpenSpan {
        self.span.change(|it| it.inputs = inputs);
        OpenSpan { outputs, ..self }
    }

    /// Keeps the outputs, one place per output of the config, if the record has tensors.
    pub fn outputs(&self, tensors: &[Option<Tensor>]) {
        if !self.outputs.is_empty() {
            let pairs = self.outputs.iter().zip(tensors);
            let named = pairs.filter_map(|(name, it)| Some((name.clone(), it.clone()?)));
            self.span.change(|it| it.outputs.extend(named));
        }
    }

    /// Notes a response that is not the last.
    pub fn part(&self, error: Option<&Error>, now: Instant) {
        self.span.change(|it| {
            if it.responses.len() < MAX_RESPONSES {
                it.responses.push(now);
            }
            it.error = it.error.take().or_else(|| error.cloned());
        });
    }

    /// Notes the end: where the time went, or why it failed.
    pub fn end(self, result: &Result<&Timing, &Error>, now: Instant) {
        self.span.change(|it| {
            it.ended = Some(now);
            match result {
                Ok(timing) => it.timing = Some(**timing),
                Err(error) => it.error = Some((*error).clone()),
            }
        });
    }
}

impl BatchExecution {
    /// Notes the execution in the traces of all `spans`, which are those of the requests in the
    /// batch; to be called before the requests are answered.
    pub fn note(spans: &[Span], finished: FinishedBatch<'_>) {
        let links = spans.iter().map(|span| (span.trace_id(), span.id())).collect();
        let execution = Arc::new(BatchExecution::new(links, finished));
        spans.iter().for_each(|span| span.executed(execution.clone()));
    }
}
