//! One loaded copy of a model: an actor that runs groups of requests and answers everyone in them.

mod actor;
mod batch_input;
mod engine;
mod immediate;
mod inline;
mod join;
mod light;
mod local;
mod open;
mod panics;
mod placement;
mod pool;
mod remote;
mod slot;
mod state;
mod state_feed;
mod threaded;
mod work;

pub use self::{
    actor::{CheckReady, InstanceActor, WarmUp},
    immediate::{Findable, ImmediateKey},
    open::{InstanceOpener, OpenedModel, runs_inline},
    placement::FreeSlots,
    pool::{InstancePool, PoolUse},
    slot::{Requeue, SlotOwner, SlotReleased, SlotStopped},
    state::InstanceGeneration,
    state_feed::StateFeed,
    work::InstanceWork,
};
