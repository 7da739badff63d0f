//! ONNX models: each instance has a session of ONNX Runtime on a thread of its own.

mod accelerators;
mod aligned;
mod complete;
mod device;
mod dtype;
mod effort;
mod file_graph;
mod graph;
mod library;
mod options;
mod parameter;
mod run;
mod session;
mod signature;
mod value;

use std::sync::Arc;

use self::{options::OnnxOptions, run::OnnxRunner, session::ModelFile};
use troupe_base::{
    backend::{Backend, Executor, InstanceName, ModelFiles, OpenLocal, Placement, Settings},
    config::{self, ModelConfig, Problem, json},
    error::{Error, Result},
};

/// Reads names, types, dims and whether the model batches off its file.
pub fn complete(settings: &Settings, files: &ModelFiles, config: &str) -> Result<Option<String>> {
    let reason = |it: Vec<Problem>| Error::internal(config::join_messages(&it));
    let mut draft = config::read_json(config, "config").map_err(reason)?;
    if complete::is_complete(&draft.proto) {
        return Ok(None);
    }
    let file = session::find(files, &draft.proto.default_model_filename)?;
    let environment = library::environment(settings, &files.name)?;
    let graph = graph::read(&file.look(environment)?);
    let found = complete::found(settings, &draft.proto, &graph)?;
    draft.auto_complete(found).map_err(reason)?;
    Ok(Some(json::print(&draft.proto)))
}

/// The same without the library, as far as the file tells; `None` too where only the library can
/// tell.
pub fn inspect(settings: &Settings, files: &ModelFiles, config: &str) -> Result<Option<String>> {
    let reason = |it: Vec<Problem>| Error::internal(config::join_messages(&it));
    let mut draft = config::read_json(config, "config").map_err(reason)?;
    let file = session::find(files, &draft.proto.default_model_filename)?;
    if complete::is_complete(&draft.proto) {
        return Ok(None);
    }
    let Some(graph) = file.declared()? else { return Ok(None) };
    let found = complete::found(settings, &draft.proto, &graph)?;
    draft.auto_complete(found).map_err(reason)?;
    Ok(Some(json::print(&draft.proto)))
}

/// What a load would refuse, as far as config and file tell.
pub fn problems(files: &ModelFiles, config: &ModelConfig) -> Result<Vec<Problem>> {
    if let Err(problems) = options::read(config) {
        return Ok(problems);
    }
    let file = session::find(files, &config.default_model_filename)?;
    let Some(graph) = file.declared()? else { return Ok(Vec::new()) };
    Ok(signature::settle(config, &graph).err().unwrap_or_default())
}

/// Checks everything that needs no session, and loads the library.
pub fn prepare(
    settings: &Settings,
    files: &ModelFiles,
    config: Arc<ModelConfig>,
) -> Result<Backend> {
    refuse_global_threadpool(settings)?;
    let options =
        options::read(&config).map_err(|it| Error::invalid(config::join_messages(&it)))?;
    let file = session::find(files, &config.default_model_filename)?;
    library::environment(settings, &files.name)?;
    let inputs: Vec<&str> = config.executor_inputs().map(|(name, _)| &**name).collect();
    let is_predictable = file.is_bounded_by_shapes(&inputs);
    let settings = settings.clone();
    Ok(Backend::Local(Arc::new(OnnxOpener { settings, config, options, file, is_predictable })))
}

fn refuse_global_threadpool(settings: &Settings) -> Result<()> {
    let key = "enable-global-threadpool";
    match settings.get("onnxruntime", key) {
        None | Some("0" | "false") => Ok(()),
        Some(_) => Err(Error::unsupported(format!(
            "--backend-config=onnxruntime,{key} is not supported yet: every instance has threads \
             of its own, see the parameter 'intra_op_thread_count'"
        ))),
    }
}

struct OnnxOpener {
    settings: Settings,
    config: Arc<ModelConfig>,
    options: OnnxOptions,
    file: ModelFile,
    is_predictable: bool,
}

impl OpenLocal for OnnxOpener {
    fn placement(&self) -> Placement {
        Placement::Own
    }

    fn is_predictable(&self) -> bool {
        self.is_predictable
    }

    fn open(&self, instance: &InstanceName) -> Result<Box<dyn Executor>> {
        let environment = library::environment(&self.settings, &self.config.name)?;
        let instance = &device::settled(environment, &self.config.name, instance)?;
        let session = self.file.open(environment, &self.options, instance)?;
        let graph = graph::read(&session);
        let signature = signature::settle(&self.config, &graph);
        let signature = signature.map_err(|it| Error::invalid(config::join_messages(&it)))?;
        let run = session::run_options(&self.options);
        let run = run.map_err(|error| Error::internal(value::message(&error)))?;
        Ok(Box::new(OnnxRunner::new(session, run, self.config.name.clone(), signature)?))
    }
}

#[cfg(test)]
mod tests;
