//! Traces pipelines: a worker of its own runs the function once, and says which ensemble it is.

use std::{path::Path, time::Duration};

use serde::Deserialize;

use super::{
    opener,
    process::{
        environment::InterpreterChoice,
        launch_spec::{LaunchCause, WorkerSetup},
    },
    runtime::Runtime,
};
use troupe_base::{
    backend::{ModelFiles, Settings},
    error::{Error, Result},
};

/// How long the function may take, with what its file imports.
const TRACE_TIMEOUT: Duration = Duration::from_secs(30);

/// A traced pipeline.
#[derive(Clone, Debug, Deserialize)]
pub struct TracedPipeline {
    /// The ensemble as a config.pbtxt.
    pub text: String,
    /// For each of its lines the one of the pipeline's file that it comes from.
    pub lines: Vec<u32>,
    /// Models and versions that it calls; -1: the latest.
    pub models: Vec<(String, i64)>,
}

/// Runs the function of the pipeline in `file`; `configs` are those of the models it calls, a list
/// in JSON, or `null` while they are not known. Blocks.
pub fn trace(
    runtime: &Runtime,
    settings: &Settings,
    files: &ModelFiles,
    file: &Path,
    configs: &str,
) -> Result<TracedPipeline> {
    let servers = runtime.fork_servers()?;
    let choice = InterpreterChoice { servers: &servers, settings, files, execution_env: None };
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let setup = opener::setup(settings, files, &file);
    let setup = WorkerSetup { pipeline: Some(configs.to_owned()), ..setup };
    let answer = opener::answer(&choice, setup, Some(TRACE_TIMEOUT)).map_err(|failed| {
        match failed.cause {
            // No parameter says how long it may take.
            LaunchCause::Overrun => Error::invalid(format!(
                "{}: the pipeline did not return within {} s",
                file.display(),
                TRACE_TIMEOUT.as_secs()
            )),
            LaunchCause::Import | LaunchCause::Other => opener::explained(failed, &choice),
        }
    })?;
    let answer = answer.unwrap_or_default();
    serde_json::from_str(&answer)
        .map_err(|error| Error::internal(format!("a traced pipeline is not JSON: {error}")))
}
