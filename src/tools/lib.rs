//! Subcommands that ask a running server over gRPC: `infer`, `bench`, `replay`, `models`, `reload`.

mod bench;
mod client;
mod elements;
mod infer;
mod input;
mod literal;
mod models;
mod print;
mod replay;
mod shape;

pub use self::{
    bench::{BenchOutcome, bench},
    infer::infer,
    models::{models, reload},
    replay::{Replayed, replay},
};
