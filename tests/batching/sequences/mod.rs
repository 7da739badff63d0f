//! The sequence batcher: requests of one sequence meet one instance, in their order.

mod cancelled;
mod direct;
mod ensembles;
mod losses;
mod mixed;
mod models;
mod plain;
mod refusals;
mod shown;
mod streams;
