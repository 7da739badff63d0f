//! Batchers: one mailbox in front of the instances of each model, where requests join into batches.

mod actor;
mod atomics;
mod autoscaler;
mod deadlock;
mod gather;
mod instances;
mod mailbox;
mod null_rows;
mod rate_claims;
mod rate_limits;
mod readiness;
mod rebalance;
mod response_order;
mod rest_board;
mod scaled;
mod scaling;
mod scheduler;
mod shards;
mod start;
mod stateful;
mod stateful_parts;
mod sweep;
#[cfg(test)]
mod tests;
mod timer;

pub use self::{
    mailbox::Mailbox,
    start::{BatcherSetup, start},
};
