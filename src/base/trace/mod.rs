//! The trace of one request: the spans of the models that worked on it and the executions they took
//! part in. A request that is not sampled has no record and pays one `Option` for it.

mod context;
mod execution;
mod ids;
mod model_span;
mod record;
mod span;

pub use self::{
    context::{HeaderReader, RemoteParent, TraceContext},
    execution::{BatchExecution, FinishedBatch},
    ids::{random, span_id},
    model_span::{CacheHit, ModelSpan, SpanStart, span_paths},
    record::{FinishedTrace, TraceRecord, TraceSink},
    span::{OpenSpan, Span},
};
