//! One inference, whatever protocol it came by: admitted, run, answered; seen by the access log,
//! the tracer and its client.
//!
//! A protocol decodes a request into `InferParams`, has an `Observed` admit and an `Admitted` run
//! it, and encodes what comes back.

mod access_log;
mod admitted;
mod answers;
mod delivery;
mod forwarding;
mod observed;
mod request_trace;
mod timing;

pub use self::{
    admitted::Admitted,
    delivery::{Deliveries, Delivery, Encoding, InferParams},
};
pub(crate) use self::{
    answers::{Answers, StreamEvent},
    delivery::MAX_BYTES_ON_THREAD,
    observed::{Observed, joined},
    request_trace::{Protocol, RequestTrace, Sending},
};
