//! What a traced request leaves behind on its way: its visits to models, and the executions it was
//! part of. A request that nobody watches has no record, and pays one `Option` for it.

mod context;
mod execution;
mod ids;
mod record;
mod visit;

pub use self::{
    context::{Carried, Header, Parent},
    execution::{Ended, Execution},
    ids::{random, span_id},
    record::{Finished, Record, Sink},
    visit::{Begin, Open, Span, Visit, ways},
};
