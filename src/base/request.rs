//! What a client asks and what it gets back, free of any wire format.

mod batch_fit;
mod call_chain;
mod cancel_on_drop;
mod credit;
pub mod deadlock;
mod message;
mod reply;
mod response;
mod states;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use actix::Message;
use smallvec::SmallVec;

pub use batch_fit::{BatchFit, batch_fit};
pub use call_chain::CallChain;
pub use cancel_on_drop::CancelOnDrop;
pub use credit::Credit;
pub use reply::Reply;
pub use response::{Answer, Part, Response};
pub use states::{MAX_INITIAL_BYTES, SequenceStates, StateKeeper, StateSet, zero_bytes};

use crate::{
    budget::Charge,
    error::{Error, Result},
    statistics::ExecutedRows,
    tensor::{OwnerCell, Tensor},
    trace::Span,
};

/// A value of `parameters` in a request or a response.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Parameter {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
}

/// Named parameters in the order they came.
pub type Parameters = Vec<(Cow<'static, str>, Parameter)>;

/// Which sequence a request belongs to: none, a number, or a string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Correlation {
    #[default]
    None,
    Number(u64),
    Text(String),
}

/// A flag of a request: it is the first of its sequence.
pub const SEQUENCE_START: u32 = 1;

/// A flag of a request: it is the last of its sequence.
pub const SEQUENCE_END: u32 = 2;

/// What every step of an ensemble shares with the request that started it.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The client's id, empty if it sent none.
    pub id: String,
    /// Custom parameters and forwarded headers.
    pub parameters: Parameters,
    /// 0 = the model's default level.
    pub priority: u64,
    /// The client's `timeout` parameter, 0 if it sent none.
    pub timeout_us: u64,
    /// When the caller stops waiting; `None` if it did not say.
    pub deadline: Option<Instant>,
    /// Which sequence this belongs to.
    pub correlation: Correlation,
    /// `SEQUENCE_START`, `SEQUENCE_END`, both or none.
    pub flags: u32,
    /// Nobody asked it: it is a row of a batch in which a sequence has nothing to do.
    pub is_null: bool,
    /// Runs before its model is ready, and counts in no statistics or metrics.
    pub is_warmup: bool,
    /// The model that asks, if it is a model.
    pub call_chain: Option<Arc<CallChain>>,
    /// One of several iterations of what a decoupled step answered: others may still be good, so
    /// its failure cancels nothing.
    pub is_iteration: bool,
    /// Where it is noted, if somebody watches it.
    pub span: Option<Span>,
    /// What its memory is counted by; uncounted for requests of the server itself.
    pub charge: Charge,
    /// Shared with the contexts made from this one.
    pub scope: Arc<Scope>,
    /// Whose shared memory its tensors may lie in.
    pub owner: OwnerCell,
}

/// A cancellation scope: what is cancelled together.
#[derive(Debug, Default)]
pub struct Scope {
    is_cancelled: AtomicBool,
    /// What this is a part of.
    above: Option<Arc<Scope>>,
}

impl Scope {
    fn is_cancelled(&self) -> bool {
        let above = || self.above.as_ref().is_some_and(|it| it.is_cancelled());
        self.is_cancelled.load(Ordering::Relaxed) || above()
    }
}

/// The most characters of an id of a sequence that is a text.
const MAX_ID_CHARS: usize = 128;

impl Correlation {
    /// 0 is no id.
    pub fn of_number(number: u64) -> Correlation {
        if number == 0 { Correlation::None } else { Correlation::Number(number) }
    }

    /// A text without characters is no id; INVALID_ARGUMENT if it has too many.
    pub fn of_text(text: String) -> Result<Correlation> {
        if text.is_empty() {
            return Ok(Correlation::None);
        }
        if MAX_ID_CHARS < text.chars().count() {
            let text = "string correlation ID cannot be longer than";
            return Err(Error::invalid(format!("{text} {MAX_ID_CHARS} characters")));
        }
        Ok(Correlation::Text(text))
    }
}

impl Context {
    /// Why no more work on the request is worth starting: its caller has gone, a sibling step
    /// failed, or its deadline is over.
    #[inline]
    pub fn stopped(&self) -> Option<Error> {
        if self.scope.is_cancelled() {
            Some(Error::cancelled())
        } else {
            self.is_late().then(Error::deadline_exceeded)
        }
    }

    /// The same without the reason.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.scope.is_cancelled() || self.is_late()
    }

    /// Looks at the clock only where there is a deadline.
    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Skips what has not started yet.
    pub fn cancel(&self) {
        self.scope.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// The same request seen as part of a sequence; cancelling one cancels both.
    pub fn in_sequence(&self, correlation: Correlation, flags: u32) -> Context {
        Context { correlation, flags, ..self.clone() }
    }

    /// The same request seen as one of several iterations; cancelling one cancels all of them, but
    /// not what they are a part of.
    pub fn in_iterations(&self) -> Context {
        let scope = Scope { above: Some(self.scope.clone()), ..Scope::default() };
        Context { is_iteration: true, scope: scope.into(), ..self.clone() }
    }

    /// The same request, made for another one: cancelled with it and as urgent, but not the other
    /// way round.
    pub fn on_behalf_of(self, other: &Context) -> Context {
        let scope = Scope { above: Some(other.scope.clone()), ..Scope::default() };
        Context { scope: scope.into(), deadline: other.deadline, ..self }
    }

    /// The same request noted under `span`; cancelling one cancels both.
    pub fn under(&self, span: Span) -> Context {
        Context { span: Some(span), ..self.clone() }
    }

    /// `[request id: 7] `, as Triton begins its messages about a request.
    pub fn tag(&self) -> String {
        let id = if self.id.is_empty() { "<id_unknown>" } else { &self.id };
        format!("[request id: {id}] ")
    }
}

/// The outputs a request asks for, by position in the model's config.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Wanted {
    /// Every output the model has.
    #[default]
    All,
    /// Only these.
    Only(SmallVec<[u16; 8]>),
}

impl Wanted {
    /// Is output `index` asked for?
    #[inline]
    pub fn has(&self, index: usize) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Only(some) => some.iter().any(|it| usize::from(*it) == index),
        }
    }
}

/// One inference request, its names already resolved to positions in the model's config.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Shared by all steps of an ensemble.
    pub context: Arc<Context>,
    /// One place per input of the config; `None` for an optional input that was not sent.
    pub inputs: Vec<Option<Tensor>>,
    /// Which outputs to answer with.
    pub wanted: Wanted,
    /// Rows in the batch dimension; 0 for models that do not batch. Set by `Model::infer`.
    pub batch: u32,
}

impl Request {
    /// What the request adds to a batch: its rows, or 1 for models that do not batch.
    #[inline]
    pub fn rows(&self) -> u32 {
        self.batch.max(1)
    }

    /// What the request adds to statistics: its rows, or 0 for a warm-up.
    #[inline]
    pub fn counted_rows(&self) -> u32 {
        if self.context.is_warmup { 0 } else { self.rows() }
    }

    /// The same, told apart from the rows of null requests.
    #[inline]
    pub fn executed_rows(&self) -> ExecutedRows {
        let all = self.counted_rows();
        ExecutedRows { all, asked: if self.context.is_null { 0 } else { all } }
    }
}

/// A request that waits, and the one way to answer it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Pending {
    /// What is asked.
    pub request: Request,
    /// Where the answer goes.
    pub reply: Reply,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_request_stops_when_it_is_cancelled_or_its_deadline_is_over() {
        let soon = Instant::now() + Duration::from_secs(3600);
        let past = Instant::now();
        for (deadline, is_cancelled, expected) in [
            (None, false, None),
            (Some(soon), false, None),
            (Some(past), false, Some(ErrorKind::DeadlineExceeded)),
            (None, true, Some(ErrorKind::Cancelled)),
            (Some(soon), true, Some(ErrorKind::Cancelled)),
            (Some(past), true, Some(ErrorKind::Cancelled)),
        ] {
            let context = Context { deadline, ..Context::default() };
            let iteration = context.in_iterations();
            if is_cancelled {
                context.cancel();
            }
            for context in [context, iteration] {
                assert_eq!(context.stopped().map(|error| error.kind()), expected);
                assert_eq!(context.is_stopped(), expected.is_some());
            }
        }
    }

    #[test]
    fn what_is_asked_on_behalf_of_a_request_is_cancelled_with_it_and_as_urgent() {
        let deadline = Some(Instant::now() + Duration::from_secs(3600));
        let asked = Context { deadline, ..Context::default() };
        let call = || Context::default().on_behalf_of(&asked);
        let (first, second) = (call(), call());
        assert_eq!(first.deadline, deadline);
        first.cancel();
        assert!(first.is_stopped() && !second.is_stopped() && !asked.is_stopped());
        asked.cancel();
        assert!(second.is_stopped());
    }
}
