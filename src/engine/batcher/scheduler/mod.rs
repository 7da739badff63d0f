//! Schedulers: which queued requests run together, where and when. No clocks, no actors.

mod batch_rule;
mod choice;
mod decision;
mod direct;
mod dynamic;
mod priority_queue;
mod queue;
mod sequence;
mod sharded;
#[cfg(test)]
mod testing;

pub(super) use self::{
    choice::{Scheduling, for_config, is_immediate},
    decision::{Decision, Rejected, Scheduler},
    sharded::{Pushed, Sharded, ShardedQueue},
};
