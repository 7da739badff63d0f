//! Fuzzing: inputs that were mutated at random, given to whatever reads what others send.
//!
//! `cargo test` runs each of them for a second. Longer, from another start each time:
//! `FUZZ_SECONDS=3600 cargo test --test main fuzz:: -- --nocapture`. A failure says its seed:
//! `FUZZ_SEED=… ` runs the same again.

mod files;
mod http;
mod mutate;
