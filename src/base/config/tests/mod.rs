//! Tables of configurations and what is said about them.

mod batch_io;
mod complete;
mod ensemble;
mod metrics;
mod model;
mod print;
mod priorities;
mod response_cache;
mod scaling;
mod sequence;
mod warmup;

use super::*;

/// Reads and finishes a config.pbtxt on a server without GPUs.
fn finish(text: &str) -> Result<ModelConfig, Vec<Problem>> {
    read_text(text, "f").and_then(|draft| draft.finish(&ServerFeatures::default()))
}

#[track_caller]
fn good(text: &str) -> ModelConfig {
    finish(text).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"))
}

/// Each expected problem is `line:column: text`, or `f: text` when it is about the whole file.
#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let problems = finish(text).err().unwrap_or_default();
    let problems: Vec<String> = problems
        .iter()
        .map(|problem| match problem.position.line {
            0 => problem.to_string(),
            _ => problem.to_string().replacen("f:", "", 1),
        })
        .collect();
    assert_eq!(problems, expected, "{text}");
}
