//! Measures what the engine itself costs: `cargo bench`, or `cargo bench -- hop` for some of it.

mod batcher;
mod bed;
mod codecs;
mod steps;

use criterion::Criterion;

/// The server's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let bed = bed::Bed::new();
    steps::hop(&mut criterion, &bed);
    steps::plans(&mut criterion, &bed);
    batcher::messages(&mut criterion, &bed);
    codecs::http(&mut criterion, &bed);
    criterion.final_summary();
}
