//! Subcommands that ask a running server over gRPC: `infer`, `bench`, `replay`.

mod bench;
mod client;
mod elements;
mod infer;
mod input;
mod literal;
mod print;
mod replay;
mod shape;

pub use self::{
    bench::{BenchOutcome, bench},
    infer::infer,
    replay::{Replayed, replay},
};
