//! One execution of a batch, shared by the records of all its traced requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use smallvec::SmallVec;

use super::{Span, span_id};
use crate::statistics::Timing;

/// One execution of a batch by one instance.
#[derive(Debug)]
pub struct BatchExecution {
    /// Its own span's identifier.
    pub id: u64,
    /// Trace and span of every traced request in it.
    pub links: SmallVec<[(u128, u64); 4]>,
    /// Who executed it.
    pub instance: Arc<str>,
    /// Requests in the batch, traced or not.
    pub requests: usize,
    /// Rows in the batch; a request of a model that does not batch counts as one.
    pub rows: u32,
    /// When the instance took the batch up.
    pub begun: Instant,
    /// How long its parts took one after the other; `queue` is not looked at.
    pub timing: Timing,
    is_told: AtomicBool,
}

/// What is known of an execution that has just ended.
#[derive(Clone, Copy, Debug)]
pub struct FinishedBatch<'a> {
    /// Who executed it.
    pub instance: &'a Arc<str>,
    /// Requests in the batch, traced or not.
    pub requests: usize,
    /// Rows in the batch.
    pub rows: u32,
    /// When the instance took the batch up.
    pub begun: Instant,
    /// How long its parts took.
    pub timing: Timing,
}

impl BatchExecution {
    /// Notes the execution in the records of all `spans`; to be called before they are answered.
    pub fn note(spans: &[Span], ended: FinishedBatch<'_>) {
        let FinishedBatch { instance, requests, rows, begun, timing } = ended;
        let links = spans.iter().map(|it| (it.trace_id(), it.id())).collect();
        let (instance, is_told) = (instance.clone(), AtomicBool::new(false));
        let id = span_id();
        let execution = Arc::new(BatchExecution {
            id,
            links,
            instance,
            requests,
            rows,
            begun,
            timing,
            is_told,
        });
        spans.iter().for_each(|it| it.executed(execution.clone()));
    }

    /// Whether this is the first who asks: it is told of once, however many records it is in.
    pub fn is_first_export(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// When inputs were ready, when the model had computed, and when outputs were ready.
    pub fn moments(&self) -> [Instant; 3] {
        let input = self.begun + self.timing.compute_input;
        let infer = input + self.timing.compute_infer;
        [input, infer, infer + self.timing.compute_output]
    }
}
