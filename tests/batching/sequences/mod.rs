//! The sequence batcher: requests of one sequence meet one instance, in their order.

mod direct;
mod ensembles;
mod losses;
mod models;
mod refusals;
mod streams;
