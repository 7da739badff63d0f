//! The trace record of one client request: collects spans and events, and hands them to the sinks
//! when the last holder drops it.

use std::{fmt, mem, sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::{
    context::{RemoteParent, TraceContext},
    ids::{random, span_id},
    model_span::{ModelSpan, SpanStart},
};
use crate::error::Error;

/// Model spans kept of one request, which may ask any number of models.
const MAX_MODEL_SPANS: usize = 4096;
/// Events of the client's request that are kept: a stream may have any number of responses.
const MAX_MARKS: usize = 1024;

/// Receives finished traces, to export or log them. Must not block.
pub trait TraceSink: Send + Sync {
    /// Takes one trace; called once a record.
    fn take(&self, finished: Arc<FinishedTrace>);
}

/// The trace of a request that is still worked on. It is finished when the last `Arc` is dropped.
pub struct TraceRecord {
    /// The trace that all spans belong to.
    pub trace_id: u128,
    /// The identifier of the request's own span, the root of what is recorded here.
    pub root: u64,
    /// The client's span, if the client is traced.
    pub parent: Option<RemoteParent>,
    /// When the request reached the server.
    pub begun: Instant,
    /// Whether inputs and outputs are kept too.
    pub has_tensors: bool,
    /// Whether others outside may know the trace: then models get its context to hand on.
    pub is_known: bool,
    /// W3C baggage, handed on with the context.
    pub baggage: String,
    state: Mutex<RecordState>,
    sinks: Vec<Arc<dyn TraceSink>>,
}

#[derive(Default)]
struct RecordState {
    model_spans: Vec<ModelSpan>,
    marks: Vec<(&'static str, Instant)>,
    /// Model spans beyond the limit.
    left_out: usize,
    /// Why the request failed before or after the models' work.
    error: Option<Error>,
}

/// A finished trace.
#[derive(Debug)]
#[allow(missing_docs, reason = "as in `TraceRecord`")]
pub struct FinishedTrace {
    pub trace_id: u128,
    pub root: u64,
    pub parent: Option<RemoteParent>,
    pub begun: Instant,
    pub ended: Instant,
    /// In the order of their starts.
    pub model_spans: Vec<ModelSpan>,
    /// Events of the client's request: received, sent and so on.
    pub marks: Vec<(&'static str, Instant)>,
    /// Model spans beyond the limit.
    pub left_out: usize,
    /// Why the client got no answer.
    pub error: Option<Error>,
}

impl TraceRecord {
    /// A record that begins at `begun`, in the trace of the client's span if it has one.
    pub fn new(
        carried: TraceContext,
        begun: Instant,
        sinks: Vec<Arc<dyn TraceSink>>,
    ) -> TraceRecord {
        let TraceContext { parent, baggage } = carried;
        let own = || u128::from(random()) << 64 | u128::from(span_id());
        let trace_id = parent.as_ref().map_or_else(own, |it| it.trace_id);
        TraceRecord {
            trace_id,
            root: span_id(),
            parent,
            begun,
            has_tensors: false,
            is_known: false,
            baggage,
            state: Mutex::default(),
            sinks,
        }
    }

    /// Notes an event of the client's request.
    pub fn mark(&self, name: &'static str, at: Instant) {
        let mut state = self.state.lock();
        if state.marks.len() < MAX_MARKS {
            state.marks.push((name, at));
        }
    }

    /// Notes that the client gets this error instead of an answer.
    pub fn fail(&self, error: &Error) {
        self.state.lock().error = Some(error.clone());
    }

    /// The model_spans so far, in the order they began.
    pub fn model_spans(&self) -> Vec<ModelSpan> {
        self.state.lock().model_spans.clone()
    }

    /// Opens a model span: its identifier and its index; `None` if there is no room.
    pub(super) fn begin(
        &self,
        parent: u64,
        step: Option<usize>,
        start: SpanStart,
    ) -> Option<(u64, usize)> {
        let mut state = self.state.lock();
        if MAX_MODEL_SPANS <= state.model_spans.len() {
            state.left_out += 1;
            return None;
        }
        let id = span_id();
        state.model_spans.push(ModelSpan {
            id,
            parent,
            step,
            start,
            ended: None,
            timing: None,
            error: None,
            execution: None,
            cache_hit: None,
            responses: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        });
        Some((id, state.model_spans.len() - 1))
    }

    /// Changes the model span with this index.
    pub(super) fn change(&self, index: usize, change: impl FnOnce(&mut ModelSpan)) {
        if let Some(span) = self.state.lock().model_spans.get_mut(index) {
            change(span);
        }
    }
}

impl fmt::Debug for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceRecord({:032x})", self.trace_id)
    }
}

impl Drop for TraceRecord {
    fn drop(&mut self) {
        if self.sinks.is_empty() {
            return;
        }
        let RecordState { model_spans, marks, left_out, error } = mem::take(self.state.get_mut());
        let finished = Arc::new(FinishedTrace {
            trace_id: self.trace_id,
            root: self.root,
            parent: self.parent.take(),
            begun: self.begun,
            ended: Instant::now(),
            model_spans,
            marks,
            left_out,
            error,
        });
        self.sinks.iter().for_each(|it| it.take(finished.clone()));
    }
}
