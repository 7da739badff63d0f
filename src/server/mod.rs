//! A server as a value: started, asked and stopped in process; several fit into one process.
//!
//! `Server::start` takes what the command line takes and answers once the listeners are open. It
//! handles no signals, sets up no log and ends no process: whoever holds the value does, `main`
//! for the binary.
//!
//! Threads: each server has an actix `System` of its own on a thread of its own, because a system
//! belongs to one thread and ends all its arbiters together; so servers share none, and the
//! embedder's runtime, whatever it is, is left alone. The engine's threads, on which batchers,
//! ensembles and light instances live, serve the connections of HTTP and gRPC too: a request that was
//! read on a thread is run there without a hop.
//!
//! What two servers in one process share, since it belongs to the process: the subscriber of
//! `tracing` (the first log that was started), ONNX Runtime's library and environment, the numbers
//! that threads have in sharded counters, and the allocator. All else is the server's own: models,
//! workers, shared memory and its limit, metrics, traces, the wait-for graph.

mod allocator;
mod certificates;
mod control_groups;
mod cpu_limit;
mod drain;
mod ending;
mod handle;
mod listeners;
mod machine;
mod memory_limit;
mod serving;
mod settings;
mod summary;
mod threads;

pub use self::{ending::Ending, handle::Server, listeners::Addresses};
