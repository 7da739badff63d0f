//! Taps capture the tensors of an ensemble's next requests and hold them until they are taken.
//!
//! Tensors are held by reference. An ensemble that nobody taps asks once a request whether it is
//! tapped, which is one relaxed load.

pub mod archive;
mod capture;
mod limit;
pub mod manifest;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

pub use self::{
    capture::{Capture, CapturedRequest, CapturedTensor, OmittedTensors, StepFailure},
    limit::reserve,
};
use crate::{
    error::{Error, ErrorKind, Result},
    request::Request,
    tensor::Tensor,
};

/// The most requests of one tap.
pub const MAX_REQUESTS: usize = 10_000;

/// What to capture.
#[derive(Clone, Debug)]
pub struct CaptureSpec {
    /// How many requests to capture, at most `MAX_REQUESTS`.
    pub requests: usize,
    /// The tensors of the ensemble to keep, by name; `None`: all.
    pub edges: Option<Vec<String>>,
    /// Bytes to hold at most.
    pub max_bytes: usize,
}

/// Why a capture ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureEnd {
    /// All requests have ended.
    Complete,
    /// Its time was up.
    Timeout,
    /// The ensemble was unloaded, or loaded anew.
    Unloaded,
    /// The server is about to end.
    Exiting,
}

impl CaptureEnd {
    /// As headers and manifests have it.
    pub fn as_str(self) -> &'static str {
        match self {
            CaptureEnd::Complete => "complete",
            CaptureEnd::Timeout => "timeout",
            CaptureEnd::Unloaded => "unloaded",
            CaptureEnd::Exiting => "exiting",
        }
    }
}

/// The place where an ensemble can be tapped, by one tap at a time.
#[derive(Debug)]
pub struct Taps(Arc<TapsState>);

#[derive(Debug)]
struct TapsState {
    /// The names of the ensemble's tensors, by slot.
    edges: Vec<Arc<str>>,
    /// More requests are to be captured.
    is_on: AtomicBool,
    open: Mutex<Option<Arc<TapSession>>>,
}

/// One tap, shared with the requests it captures.
#[derive(Debug)]
struct TapSession {
    /// Which slots are kept.
    chosen: Vec<bool>,
    /// Taken when the tap is over.
    capture: Mutex<Option<Capture>>,
    /// Said once: all requests are through, or the ensemble has gone.
    over: Notify,
}

impl Taps {
    /// Of an ensemble with these tensors, by slot.
    pub fn new(edges: Vec<Arc<str>>) -> Taps {
        let (is_on, open) = (AtomicBool::new(false), Mutex::default());
        Taps(Arc::new(TapsState { edges, is_on, open }))
    }

    /// Captures the requests that begin from now on, until the tap is taken or dropped.
    ///
    /// It is an error if a tensor is unknown, or if somebody taps already.
    pub fn start(&self, ensemble: &str, wish: &CaptureSpec) -> Result<Tap> {
        let TapsState { edges, is_on, open } = &*self.0;
        let chosen = self.chosen(ensemble, wish)?;
        let mut open = open.lock();
        if open.is_some() {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "ensemble '{ensemble}' is being tapped already: wait for the end of that tap"
                ),
            ));
        }
        let capture = Capture::new(wish, edges.len());
        let session = Arc::new(TapSession {
            chosen,
            capture: Mutex::new(Some(capture)),
            over: Notify::new(),
        });
        *open = Some(session.clone());
        is_on.store(true, Relaxed);
        Ok(Tap { shared: self.0.clone(), session })
    }

    fn chosen(&self, ensemble: &str, wish: &CaptureSpec) -> Result<Vec<bool>> {
        let edges = &self.0.edges;
        let Some(names) = &wish.edges else { return Ok(vec![true; edges.len()]) };
        let names: HashSet<&str> = names.iter().map(String::as_str).collect();
        let quoted = |names: &mut dyn Iterator<Item = &str>| {
            let names: Vec<_> = names.map(|it| format!("'{it}'")).collect();
            names.join(", ")
        };
        let mut unknown: Vec<&str> =
            names.iter().copied().filter(|it| !edges.iter().any(|edge| **edge == **it)).collect();
        unknown.sort_unstable();
        if names.is_empty() || !unknown.is_empty() {
            let known = quoted(&mut edges.iter().map(|it| &**it));
            let wrong = match &unknown[..] {
                [] => "'edges' names no tensor".to_owned(),
                some => format!("no tensor {}", quoted(&mut some.iter().copied())),
            };
            return Err(Error::invalid(format!(
                "{wrong}: the tensors of ensemble '{ensemble}' are {known}"
            )));
        }
        Ok(edges.iter().map(|it| names.contains(&**it)).collect())
    }

    /// Is somebody waiting for requests to capture?
    pub fn is_on(&self) -> bool {
        self.0.is_on.load(Relaxed)
    }

    /// Called for each request, whose inputs lie in these slots: what notes its way, if it is to be
    /// captured.
    pub fn begin(&self, request: &Request, inputs: &[usize]) -> Option<TapRecorder> {
        if !self.is_on() || request.context.is_warmup {
            return None;
        }
        let session = self.0.open.lock().clone()?;
        let (number, is_last) = session.capture.lock().as_mut()?.begin(request)?;
        if is_last {
            self.0.is_on.store(false, Relaxed);
        }
        let in_flight = Arc::new(CapturingRequest { session, number });
        let recording = TapRecorder { request: in_flight, iteration: None };
        for (slot, tensor) in inputs.iter().zip(&request.inputs) {
            recording.keep(*slot, tensor.as_ref(), request.batch);
        }
        Some(recording)
    }
}

impl Drop for Taps {
    fn drop(&mut self) {
        if let Some(session) = self.0.open.lock().take() {
            if let Some(capture) = &mut *session.capture.lock() {
                capture.ended = Some(CaptureEnd::Unloaded);
            }
            session.over.notify_one();
        }
    }
}

/// The tap itself; dropping it lets go of everything.
#[derive(Debug)]
pub struct Tap {
    shared: Arc<TapsState>,
    session: Arc<TapSession>,
}

impl Tap {
    /// Waits until all requests are through, or the ensemble has gone; says which.
    pub async fn over(&self) -> CaptureEnd {
        self.session.over.notified().await;
        let capture = self.session.capture.lock();
        capture.as_ref().and_then(|it| it.ended).unwrap_or(CaptureEnd::Complete)
    }

    /// What there is by now. Requests under way are not waited for.
    pub fn take(self) -> Capture {
        self.close().unwrap_or_default()
    }

    /// The names of the ensemble's tensors, by slot, and whether they were to be kept.
    pub fn edges(&self) -> Vec<(Arc<str>, bool)> {
        self.shared.edges.iter().cloned().zip(self.session.chosen.iter().copied()).collect()
    }

    fn close(&self) -> Option<Capture> {
        let mut open = self.shared.open.lock();
        let capture = self.session.capture.lock().take();
        if open.as_ref().is_some_and(|it| Arc::ptr_eq(it, &self.session)) {
            self.shared.is_on.store(false, Relaxed);
            *open = None;
        }
        capture
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.close();
    }
}

/// Notes what one captured request leaves on its way, or one of its iterations.
#[derive(Clone, Debug)]
pub struct TapRecorder {
    request: Arc<CapturingRequest>,
    iteration: Option<u64>,
}

impl TapRecorder {
    /// The same for what follows from one response of a decoupled step.
    pub fn iteration(&self, number: u64) -> TapRecorder {
        TapRecorder { request: self.request.clone(), iteration: Some(number) }
    }

    /// Keeps what a step answered: its outputs by position, and the slot each of `writes` is for.
    /// `batch` is the batch size of the step's request, 0 if its model does not batch.
    pub fn outputs(&self, writes: &[(usize, usize)], outputs: &[Option<Tensor>], batch: u32) {
        for (output, slot) in writes {
            self.keep(*slot, outputs.get(*output).and_then(Option::as_ref), batch);
        }
    }

    /// A step failed.
    pub fn failed(&self, step: usize, error: &Error) {
        if let Some(capture) = &mut *self.request.session.capture.lock() {
            let failed = StepFailure { step, iteration: self.iteration, text: error.to_string() };
            capture.failed(self.request.number, failed);
        }
    }

    fn keep(&self, slot: usize, tensor: Option<&Tensor>, batch: u32) {
        let CapturingRequest { session, number } = &*self.request;
        let Some(tensor) = tensor.filter(|_| session.chosen[slot]) else { return };
        if let Some(capture) = &mut *session.capture.lock() {
            let edge =
                CapturedTensor { slot, iteration: self.iteration, batch, tensor: tensor.clone() };
            capture.keep(*number, edge);
        }
    }
}

/// A request that has not ended.
#[derive(Debug)]
struct CapturingRequest {
    session: Arc<TapSession>,
    number: usize,
}

impl Drop for CapturingRequest {
    fn drop(&mut self) {
        let mut capture = self.session.capture.lock();
        if capture.as_mut().is_some_and(|it| it.end(self.number)) {
            self.session.over.notify_one();
        }
    }
}
