//! Subcommands that ask a running server: `infer`, `bench`, `replay`, `models`, `reload`, `logs`.

mod bench;
mod client;
mod elements;
mod http;
mod infer;
mod input;
mod literal;
mod logs;
mod models;
mod parameters;
mod print;
mod replay;
mod shape;

pub use self::{
    bench::{BenchOutcome, bench},
    infer::infer,
    logs::logs,
    models::{models, reload},
    replay::{Replayed, replay},
};
