//! Batchers: one mailbox in front of the instances of each model, where requests join into batches.

mod actor;
mod deadlock;
mod mailbox;
mod readiness;
mod response_order;
mod scheduler;
mod start;
#[cfg(test)]
mod tests;
mod timer;

pub use self::{
    mailbox::Mailbox,
    start::{BatcherSetup, start},
};
