//! Measures what the engine itself costs: `cargo bench`, or `cargo bench -- hop` for some of it.

mod batcher;
mod bed;
mod steps;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let bed = bed::Bed::new();
    steps::hop(&mut criterion, &bed);
    steps::plans(&mut criterion, &bed);
    batcher::messages(&mut criterion, &bed);
    criterion.final_summary();
}
