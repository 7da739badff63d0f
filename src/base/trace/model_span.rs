//! A model's work on one traced request.

use std::{collections::HashMap, sync::Arc, time::Instant};

use super::{BatchExecution, TraceRecord};
use crate::{error::Error, statistics::Timing, tensor::Tensor};

/// Where a traced request is: in the record of its client's request, under one of its visits.
#[derive(Clone, Debug)]
pub struct Span {
    record: Arc<TraceRecord>,
    id: u64,
    /// Position in the record; `None` under the client's request itself.
    visit: Option<usize>,
    /// The step of the ensemble for which a model is asked next.
    step: Option<usize>,
}

/// What is known when a model is asked.
#[derive(Clone, Debug)]
pub struct SpanStart {
    /// The model's name.
    pub model: Arc<str>,
    /// Its version.
    pub version: i64,
    /// It answers by asking others.
    pub is_ensemble: bool,
    /// The client's id, empty if it sent none.
    pub request_id: String,
    /// When it was asked.
    pub at: Instant,
}

/// A model's work on a request, from the question to the last response.
#[derive(Clone, Debug)]
pub struct ModelSpan {
    /// Its span's identifier.
    pub id: u64,
    /// The span above it.
    pub parent: u64,
    /// The step of the ensemble above, by position; `None` for what a client or a model asked.
    pub step: Option<usize>,
    /// What was known when it began.
    pub start: SpanStart,
    /// When it was answered; `None` while it is not, and for ever if its answer got lost.
    pub ended: Option<Instant>,
    /// Where the time went, if it was answered well; of an ensemble the sum of its steps.
    pub timing: Option<Timing>,
    /// Why it failed.
    pub error: Option<Error>,
    /// The execution it was part of, the last one if it was queued anew.
    pub execution: Option<Arc<BatchExecution>>,
    /// When responses before the last were given, the first of them.
    pub responses: Vec<Instant>,
    /// What went in and came out, by name; only if the record wants tensors.
    pub inputs: Vec<(String, Tensor)>,
    /// What came out.
    pub outputs: Vec<(String, Tensor)>,
}

/// A visit that goes on, until it is told its end.
#[derive(Debug)]
pub struct OpenSpan {
    span: Span,
    /// Names of the outputs; empty unless the record wants tensors.
    outputs: Vec<String>,
}

/// So many responses have a moment each; of more there are a thousand times as many somewhere.
const MAX_RESPONSES: usize = 1024;

/// Visits below `root`, in the order they began, each with its way: the visits from the one right
/// below what the client asked down to itself; empty for that one.
pub fn span_paths(
    root: u64,
    visits: &[ModelSpan],
) -> impl Iterator<Item = (&ModelSpan, Vec<&ModelSpan>)> {
    let mut ways: HashMap<u64, Vec<&ModelSpan>> = HashMap::new();
    visits.iter().filter_map(move |visit| {
        let mut way = Vec::new();
        if visit.parent != root {
            way.clone_from(ways.get(&visit.parent)?);
            way.push(visit);
        }
        ways.insert(visit.id, way.clone());
        Some((visit, way))
    })
}

impl Span {
    /// Right under the client's request.
    pub fn root(record: Arc<TraceRecord>) -> Span {
        Span { id: record.root, record, visit: None, step: None }
    }

    /// The record of the client's request.
    pub fn record(&self) -> &Arc<TraceRecord> {
        &self.record
    }

    /// The trace all spans of the record belong to.
    pub fn trace_id(&self) -> u128 {
        self.record.trace_id
    }

    /// The identifier that what is asked next has as its parent.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The same, with the next question being that of an ensemble's step.
    pub fn at_step(&self, index: usize) -> Span {
        Span { step: Some(index), ..self.clone() }
    }

    /// A model is asked. `None` once the record is full.
    pub fn begin(&self, begin: SpanStart) -> Option<OpenSpan> {
        let (id, visit) = self.record.begin(self.id, self.step, begin)?;
        let span = Span { record: self.record.clone(), id, visit: Some(visit), step: None };
        Some(OpenSpan { span, outputs: Vec::new() })
    }

    /// The model it is under took part in an execution.
    pub fn executed(&self, execution: Arc<BatchExecution>) {
        self.change(|it| it.execution = Some(execution));
    }

    fn change(&self, change: impl FnOnce(&mut ModelSpan)) {
        if let Some(visit) = self.visit {
            self.record.change(visit, change);
        }
    }
}

impl OpenSpan {
    /// What its model asks or executes is under this.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Keeps the inputs now, and the outputs of these names once they come.
    pub fn with_tensors(self, inputs: Vec<(String, Tensor)>, outputs: Vec<String>) -> OpenSpan {
        self.span.change(|it| it.inputs = inputs);
        OpenSpan { outputs, ..self }
    }

    /// What came out, one place per output of the config; kept only if that is wanted.
    pub fn outputs(&self, tensors: &[Option<Tensor>]) {
        if !self.outputs.is_empty() {
            let both = self.outputs.iter().zip(tensors);
            let named = both.filter_map(|(name, it)| Some((name.clone(), it.clone()?)));
            self.span.change(|it| it.outputs.extend(named));
        }
    }

    /// A response that is not the last.
    pub fn part(&self, error: Option<&Error>, now: Instant) {
        self.span.change(|it| {
            if it.responses.len() < MAX_RESPONSES {
                it.responses.push(now);
            }
            it.error = it.error.take().or_else(|| error.cloned());
        });
    }

    /// The end, and where the time went or why it failed.
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
