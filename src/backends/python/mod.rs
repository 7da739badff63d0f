//! Python models: a worker process per instance, forked with numpy already loaded.

mod limits;
mod memory;
mod opener;
mod pipeline;
mod process;
mod protocol;
mod runtime;
mod source_check;
#[cfg(test)]
mod tests;
mod worker;

pub use self::{
    limits::ENVIRONMENT,
    memory::settings::sizes,
    opener::{complete, prepare},
    pipeline::{TracedPipeline, trace},
    runtime::Runtime,
    source_check::check,
};
