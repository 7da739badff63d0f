//! Everything noted about one request of a client; whoever wanted it gets it at its end.

use std::{fmt, mem, sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::{Begin, Carried, Parent, Visit, random, span_id};
use crate::error::Error;

/// A request may ask any number of models; so many are noted.
const MAX_VISITS: usize = 4096;
/// The same of what happens at the door: a stream may have any number of responses.
const MAX_MARKS: usize = 1024;

/// Takes what was noted, once nobody works on the request any more. Must not block.
pub trait Sink: Send + Sync {
    /// Called once for each record.
    fn take(&self, finished: Arc<Finished>);
}

/// One request of a client on its way. It ends when the last who works on it lets go.
pub struct Record {
    /// All spans belong to it.
    pub trace_id: u128,
    /// Identifier of the request's own span.
    pub root: u64,
    /// The client's span.
    pub parent: Option<Parent>,
    /// When the request reached the server.
    pub begun: Instant,
    /// Inputs and outputs are kept too.
    pub has_tensors: bool,
    /// Others outside may know the trace: models get its context to hand on.
    pub is_known: bool,
    /// What the client's system wants handed on with the context.
    pub baggage: String,
    state: Mutex<State>,
    sinks: Vec<Arc<dyn Sink>>,
}

#[derive(Default)]
struct State {
    visits: Vec<Visit>,
    marks: Vec<(&'static str, Instant)>,
    /// Visits that found no room.
    left_out: usize,
    /// Why the request failed before a model saw it, or after.
    error: Option<Error>,
}

/// What was noted of a request.
#[derive(Debug)]
#[allow(missing_docs, reason = "as in `Record`")]
pub struct Finished {
    pub trace_id: u128,
    pub root: u64,
    pub parent: Option<Parent>,
    pub begun: Instant,
    pub ended: Instant,
    /// In the order they began.
    pub visits: Vec<Visit>,
    /// What happened at the door.
    pub marks: Vec<(&'static str, Instant)>,
    /// Visits that found no room.
    pub left_out: usize,
    /// Why the client got no answer.
    pub error: Option<Error>,
}

impl Record {
    /// Begins at `begun`, in the trace of the client's span if it has one.
    pub fn new(carried: Carried, begun: Instant, sinks: Vec<Arc<dyn Sink>>) -> Record {
        let Carried { parent, baggage } = carried;
        let own = || u128::from(random()) << 64 | u128::from(span_id());
        let trace_id = parent.as_ref().map_or_else(own, |it| it.trace_id);
        Record {
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

    /// The visits so far, in the order they began.
    pub fn visits(&self) -> Vec<Visit> {
        self.state.lock().visits.clone()
    }

    /// A new visit's identifier and position; `None` if there is no room.
    pub(super) fn begin(
        &self,
        parent: u64,
        step: Option<usize>,
        begin: Begin,
    ) -> Option<(u64, usize)> {
        let mut state = self.state.lock();
        if MAX_VISITS <= state.visits.len() {
            state.left_out += 1;
            return None;
        }
        let id = span_id();
        state.visits.push(Visit {
            id,
            parent,
            step,
            begin,
            ended: None,
            timing: None,
            error: None,
            execution: None,
            responses: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        });
        Some((id, state.visits.len() - 1))
    }

    pub(super) fn change(&self, visit: usize, change: impl FnOnce(&mut Visit)) {
        if let Some(visit) = self.state.lock().visits.get_mut(visit) {
            change(visit);
        }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({:032x})", self.trace_id)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.sinks.is_empty() {
            return;
        }
        let State { visits, marks, left_out, error } = mem::take(self.state.get_mut());
        let finished = Arc::new(Finished {
            trace_id: self.trace_id,
            root: self.root,
            parent: self.parent.take(),
            begun: self.begun,
            ended: Instant::now(),
            visits,
            marks,
            left_out,
            error,
        });
        self.sinks.iter().for_each(|it| it.take(finished.clone()));
    }
}
