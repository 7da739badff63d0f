//! What a traced request leaves behind on its way: its visits to models, and the executions it was
//! part of. A request that nobody watches has no record, and pays one `Option` for it.

mod context;
mod execution;
mod ids;
mod model_span;
mod record;

pub use self::{
    context::{HeaderReader, RemoteParent, TraceContext},
    execution::{BatchExecution, FinishedBatch},
    ids::{random, span_id},
    model_span::{ModelSpan, OpenSpan, Span, SpanStart, span_paths},
    record::{FinishedTrace, TraceRecord, TraceSink},
};
