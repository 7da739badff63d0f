//! The span of one model in a trace: when it was asked, executed and answered.

use std::{collections::HashMap, sync::Arc, time::Instant};

use super::execution::BatchExecution;
use crate::{error::Error, statistics::Timing, tensor::Tensor};

/// What is known of a model span at its start.
#[derive(Clone, Debug)]
pub struct SpanStart {
    /// The model's name.
    pub model: Arc<str>,
    /// Its version.
    pub version: i64,
    /// It answers by running other models.
    pub is_ensemble: bool,
    /// The client's id, empty if it sent none.
    pub request_id: String,
    /// When the model was asked.
    pub at: Instant,
}

/// An answer without an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHit {
    /// When it was found.
    pub at: Instant,
    /// An equal request was executed at that time.
    pub is_coalesced: bool,
}

/// A model's work on a request, from its arrival at the model to the last response.
#[derive(Clone, Debug)]
pub struct ModelSpan {
    /// The span's identifier.
    pub id: u64,
    /// The identifier of the parent span.
    pub parent: u64,
    /// The step of the parent, an ensemble, by position in its config; `None` where a client or a
    /// model asked.
    pub step: Option<usize>,
    /// What was known at its start.
    pub start: SpanStart,
    /// When the last response was given; `None` until then, and for ever if the answer got lost.
    pub ended: Option<Instant>,
    /// Where the time went, if it succeeded; of an ensemble the sum of its steps.
    pub timing: Option<Timing>,
    /// Why it failed.
    pub error: Option<Error>,
    /// The execution it was part of, the last one if it was queued anew.
    pub execution: Option<Arc<BatchExecution>>,
    /// It was not executed: the answer was kept, or is that of an equal request.
    pub cache_hit: Option<CacheHit>,
    /// When each of the first responses before the last was given.
    pub responses: Vec<Instant>,
    /// Input tensors by name; empty unless the record has tensors.
    pub inputs: Vec<(String, Tensor)>,
    /// Output tensors by name; empty unless the record has tensors.
    pub outputs: Vec<(String, Tensor)>,
}

/// Each span below `root` in the order of their starts, with its path: the spans from the first one
/// below the model that the client asked down to the span itself; empty for that model. Spans whose
/// parent is missing are left out.
pub fn span_paths(
    root: u64,
    spans: &[ModelSpan],
) -> impl Iterator<Item = (&ModelSpan, Vec<&ModelSpan>)> {
    let mut paths: HashMap<u64, Vec<&ModelSpan>> = HashMap::new();
    spans.iter().filter_map(move |span| {
        let mut path = Vec::new();
        if span.parent != root {
            path.clone_from(paths.get(&span.parent)?);
            path.push(span);
        }
        paths.insert(span.id, path.clone());
        Some((span, path))
    })
}
