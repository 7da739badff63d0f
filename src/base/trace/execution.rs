//! The execution of a batch in traces, shared by the records of all traced requests in the batch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use smallvec::SmallVec;

use super::ids::span_id;
use crate::statistics::Timing;

/// One execution of a batch by one instance.
#[derive(Debug)]
pub struct BatchExecution {
    /// The identifier of the execution's own span.
    pub id: u64,
    /// Trace id and span id of every traced request in the batch.
    pub links: SmallVec<[(u128, u64); 4]>,
    /// The instance that executed it.
    pub instance: Arc<str>,
    /// Requests in the batch, traced or not.
    pub requests: usize,
    /// Rows in the batch; a request of a model that does not batch counts as one.
    pub rows: u32,
    /// When the instance took the batch up.
    pub begun: Instant,
    /// The durations of its phases, one after the other; `queue` is ignored.
    pub timing: Timing,
    is_exported: AtomicBool,
}

/// An execution that has just ended, before it is written into traces.
#[derive(Clone, Copy, Debug)]
pub struct FinishedBatch<'a> {
    /// The instance that executed it.
    pub instance: &'a Arc<str>,
    /// Requests in the batch, traced or not.
    pub requests: usize,
    /// Rows in the batch.
    pub rows: u32,
    /// When the instance took the batch up.
    pub begun: Instant,
    /// The durations of its phases.
    pub timing: Timing,
}

impl BatchExecution {
    /// The execution as the traces of `links` share it, with a span id of its own.
    pub(super) fn new(
        links: SmallVec<[(u128, u64); 4]>,
        finished: FinishedBatch<'_>,
    ) -> BatchExecution {
        let FinishedBatch { instance, requests, rows, begun, timing } = finished;
        let (id, instance) = (span_id(), instance.clone());
        let is_exported = AtomicBool::new(false);
        BatchExecution { id, links, instance, requests, rows, begun, timing, is_exported }
    }

    /// True for the first caller only: the batch is exported once, however many records share it.
    pub fn is_first_export(&self) -> bool {
        !self.is_exported.swap(true, Ordering::Relaxed)
    }

    /// When the inputs were ready, when the model had computed, and when the outputs were ready.
    pub fn moments(&self) -> [Instant; 3] {
        let input = self.begun + self.timing.compute_input;
        let infer = input + self.timing.compute_infer;
        [input, infer, infer + self.timing.compute_output]
    }
}
