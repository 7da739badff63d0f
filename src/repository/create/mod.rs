//! Creates models and ensembles in a folder of models: `troupe new`.

mod config_text;
mod ensemble;
mod example;
mod folder;
mod model;
mod ops;
mod pipeline;
mod signature;
#[cfg(test)]
mod testing;
mod wiring;

use troupe_options::NewCommand;

/// Writes what is asked for; what to print: what was made, and what to run next. Blocks, and runs
/// the code of models whose configs do not say what they take and give.
pub fn create(asked: &NewCommand) -> Result<String, String> {
    match asked {
        NewCommand::Model(asked) => model::create(asked),
        NewCommand::Ensemble(asked) => ensemble::create(asked),
        NewCommand::Pipeline(asked) => pipeline::create(asked),
    }
}
