//! The actors a request runs through: ensembles of steps, batchers of models, instances.
//!
//! `ensemble` sends a request from step to step. `batcher` is the mailbox of one model: its
//! scheduler (`batcher/scheduler`: one file each, and the table `choice`) says which requests run
//! together and when. `instance` has an actor for each loaded copy of the model, in a pool whose
//! `placement` says which slot gets the next batch. What runs an instance is an engine: inline in
//! its batcher's thread, on a thread of its own, or in a worker process. `rate_limiter` says when
//! instances of different models may execute beside each other.

pub mod batcher;
pub mod engines;
pub mod ensemble;
pub mod instance;
pub mod rate_limiter;
pub mod response_cache;
mod thread_loads;
