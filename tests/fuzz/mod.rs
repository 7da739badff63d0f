//! Fuzzing: inputs that were mutated at random, given to whatever reads what others send.
//!
//! `cargo test` runs each of them for a second. Longer, from another start each time, and all side by
//! side: `FUZZ_SECONDS=3600 cargo test --test main fuzz:: -- --nocapture --test-threads=16`. A failure
//! says its seed, and the folder below `target/tmp/fuzz` that holds its input in a file of that name:
//! `FUZZ_SEED=…` begins there again. What a server was left with after a batch of inputs may need all
//! of them: then the seed is that of the first.

mod attempts;
mod files;
mod grpc_frames;
mod grpc_messages;
mod http;
mod mutate;
mod regions;
mod transfers;
mod wire;
mod workers;
