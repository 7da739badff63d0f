//! One loaded copy of a model: runs groups of requests and answers everyone in them.

mod batch_input;
mod join;
mod local;
mod remote;

pub use self::{
    local::{Local, OwnThread, Thread, Work},
    remote::{Again, Outside},
};
