//! Makes sessions: the threads, memory and hardware that execute a model.

use std::path::PathBuf;

use ort::{
    environment::Environment,
    ep::{self, ExecutionProvider},
    logging::LogLevel,
    session::{
        RunOptions, Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
};

use super::{effort, file_graph, graph::ModelGraph, options::OnnxOptions, value::message};
use troupe_base::{
    backend::{InstanceName, ModelFiles},
    config::stays_in_model,
    error::{Error, Result},
    files::{instead_of, not_fetched},
};

/// The file of a model that names none, and of one that is a folder.
const MODEL_FILE: &str = "model.onnx";

/// A model's file, which is there.
pub(super) struct ModelFile {
    path: PathBuf,
    model: String,
    version: i64,
}

/// Finds the file of a version, or the one inside a folder of that name.
pub(super) fn find(place: &ModelFiles, name: &str) -> Result<ModelFile> {
    let name = if name.is_empty() { MODEL_FILE } else { name };
    // A config that is completed here was not checked yet.
    if !stays_in_model(name) {
        return Err(Error::invalid(format!(
            "default_model_filename '{name}' of model '{}' is outside model directory",
            place.name
        )));
    }
    let mut path = place.model_dir.join(place.version.to_string()).join(name);
    if path.is_dir() {
        path.push(MODEL_FILE);
    }
    if !path.is_file() {
        return Err(Error::unavailable(format!(
            "unable to find '{}' for model instance '{}'{}",
            path.display(),
            place.name,
            instead_of(&path)
        )));
    }
    if let Some(text) = not_fetched(&path) {
        return Err(Error::invalid(text));
    }
    Ok(ModelFile { path, model: place.name.clone(), version: place.version })
}

impl ModelFile {
    /// What the file declares, read without the library; `None` where only that can tell.
    pub(super) fn declared(&self) -> Result<Option<ModelGraph>> {
        file_graph::read(&self.path).map_err(|error| {
            Error::invalid(format!("unable to read '{}': {error}", self.path.display()))
        })
    }

    /// A session that only tells what is in the file: nothing is optimized.
    pub(super) fn look(&self, environment: &Environment) -> Result<Session> {
        let plain = || -> ort::Result<Session> {
            let builder = quiet(environment)?;
            let builder = builder.with_optimization_level(GraphOptimizationLevel::Disable)?;
            builder.with_intra_threads(1)?.commit_from_file(&self.path)
        };
        plain().map_err(|error| self.failed(&error))
    }

    /// The session of one instance.
    pub(super) fn open(
        &self,
        environment: &Environment,
        options: &OnnxOptions,
        instance: &InstanceName,
    ) -> Result<Session> {
        let builder = configured(environment, options);
        let mut builder = builder.map_err(|error| self.failed(&error))?;
        options.accelerators.register(&mut builder, instance, &self.model)?;
        builder.commit_from_file(&self.path).map_err(|error| self.failed(&error))
    }

    /// Is its work bounded by the shapes of these inputs? Not known of a file that is no graph.
    pub(super) fn is_bounded_by_shapes(&self, inputs: &[&str]) -> bool {
        effort::is_bounded_by_shapes(&self.path, inputs).unwrap_or(false)
    }

    fn failed(&self, error: &ort::Error) -> Error {
        Error::internal(format!(
            "unable to load model '{}' version {} from '{}': {}",
            self.model,
            self.version,
            self.path.display(),
            message(error)
        ))
    }
}

/// Idle threads sleep instead of spinning.
fn quiet(environment: &Environment) -> ort::Result<SessionBuilder> {
    let builder = Session::builder(environment)?;
    Ok(builder.with_intra_op_spinning(false)?.with_inter_op_spinning(false)?)
}

fn configured(environment: &Environment, options: &OnnxOptions) -> ort::Result<SessionBuilder> {
    let mut builder = quiet(environment)?
        .with_optimization_level(options.level)?
        .with_parallel_execution(options.parallel)?
        .with_intra_threads(options.intra_op_threads)?
        .with_inter_threads(options.inter_op_threads)?;
    if let Some(enable) = options.pattern {
        builder = builder.with_memory_pattern(enable)?;
    }
    if let Some(enable) = options.arena {
        ep::CPU::default().with_arena_allocator(enable).register(&mut builder)?;
    }
    for (key, value) in &options.session_entries {
        builder = builder.with_config_entry(key, value)?;
    }
    Ok(builder)
}

/// The options of each run of a model.
pub(super) fn run_options(options: &OnnxOptions) -> ort::Result<RunOptions> {
    let mut run = RunOptions::new()?;
    // A failed run is an answer; in the log it would stand twice.
    run.set_log_level(LogLevel::Fatal)?;
    for (key, value) in &options.run_entries {
        run.set(key, value)?;
    }
    Ok(run)
}
