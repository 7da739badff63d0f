//! Everything noted about one request of a client; whoever wanted it gets it at its end.

use std::{fmt, mem, sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::{ModelSpan, RemoteParent, SpanStart, TraceContext, random, span_id};
use crate::error::Error;

/// A request may ask any number of models; so many are noted.
const MAX_MODEL_SPANS: usize = 4096;
/// The same of what happens at the door: a stream may have any number of responses.
const MAX_MARKS: usize = 1024;

/// Takes what was noted, once nobody works on the request any more. Must not block.
pub trait TraceSink: Send + Sync {
    /// Called once for each record.
    fn take(&self, finished: Arc<FinishedTrace>);
}

/// One request of a client on its way. It ends when the last who works on it lets go.
pub struct TraceRecord {
    /// All spans belong to it.
    pub trace_id: u128,
    /// Identifier of the request's own span.
    pub root: u64,
    /// The client's span.
    pub parent: Option<RemoteParent>,
    /// When the request reached the server.
    pub begun: Instant,
    /// Inputs and outputs are kept too.
    pub has_tensors: bool,
    /// Others outside may know the trace: models get its context to hand on.
    pub is_known: bool,
    /// What the client's system wants handed on with the context.
    pub baggage: String,
    state: Mutex<State>,
    sinks: Vec<Arc<dyn TraceSink>>,
}

#[derive(Default)]
struct State {
    model_spans: Vec<ModelSpan>,
    marks: Vec<(&'static str, Instant)>,
    /// Visits that found no room.
    left_out: usize,
    /// Why the request failed before a model saw it, or after.
    error: Option<Error>,
}

/// What was noted of a request.
#[derive(Debug)]
#[allow(missing_docs, reason = "as in `TraceRecord`")]
pub struct FinishedTrace {
    pub trace_id: u128,
    pub root: u64,
    pub parent: Option<RemoteParent>,
    pub begun: Instant,
    pub ended: Instant,
    /// In the order they began.
    pub model_spans: Vec<ModelSpan>,
    /// What happened at the door.
    pub marks: Vec<(&'static str, Instant)>,
    /// Visits that found no room.
    pub left_out: usize,
    /// Why the client got no answer.
    pub error: Option<Error>,
}

impl TraceRecord {
    /// Begins at `begun`, in the trace of the client's span if it has one.
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

    /// Something happened at the door.
    pub fn mark(&self, name: &'static str, at: Instant) {
        let mut state = self.state.lock();
        if state.marks.len() < MAX_MARKS {
            state.marks.push((name, at));
        }
    }

    /// The client gets this instead of an answer.
    pub fn fail(&self, error: &Error) {
        self.state.lock().error = Some(error.clone());
    }

    /// The model_spans so far, in the order they began.
    pub fn model_spans(&self) -> Vec<ModelSpan> {
        self.state.lock().model_spans.clone()
    }

    /// A new visit's identifier and position; `None` if there is no room.
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
            responses: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        });
        Some((id, state.model_spans.len() - 1))
    }

    pub(super) fn change(&self, visit: usize, change: impl FnOnce(&mut ModelSpan)) {
        if let Some(visit) = self.state.lock().model_spans.get_mut(visit) {
            change(visit);
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
        let State { model_spans, marks, left_out, error } = mem::take(self.state.get_mut());
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
