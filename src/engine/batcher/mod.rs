//! Batchers: one mailbox in front of the instances of each model, where requests join into batches.

mod actor;
mod atomics;
mod deadlock;
mod gather;
mod mailbox;
mod readiness;
mod rebalance;
mod response_order;
mod rest_board;
mod scheduler;
mod shards;
mod start;
#[cfg(test)]
mod tests;
mod timer;

pub use self::{
    mailbox::Mailbox,
    start::{BatcherSetup, start},
};
