//! One run through a plan: from its first tensors, over the step actors, to its continuation.

mod client_reply;
mod continuation;
mod missing;
mod nested_step;
mod once;
mod routing;
mod scatter;
mod sequence;
mod slots;
mod split;
mod step_actor;
mod step_timing;

#[cfg(test)]
pub(crate) use self::step_actor::SWEEP_INTERVAL;
pub(crate) use self::{
    client_reply::ClientReply,
    continuation::Continuation,
    once::start,
    routing::RunSetup,
    sequence::context_after,
    slots::RunInputs,
    step_actor::{LongRequest, StepActor, StepAddrs, StepReady, StepWork, WatchRequest, release},
    step_timing::{StepTiming, StepTurn},
};
