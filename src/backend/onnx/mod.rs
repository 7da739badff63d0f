//! ONNX models: one session of ONNX Runtime per instance.

mod device;
mod library;

use std::{path::PathBuf, sync::Arc};

use ort::{environment::Environment, ep::CUDA, session::Session};

use super::{Backend, Executor, InstanceName, OpenLocal, Place, Placement, Settings, Tensors};
use crate::{
    config::ModelConfig,
    error::{Error, Result},
};

/// Leaves the config as it is.
pub fn complete(_: &Settings, _: &Place, _: &str) -> Result<Option<String>> {
    Ok(None)
}

/// Starts ONNX Runtime.
pub fn prepare(settings: &Settings, place: &Place, config: Arc<ModelConfig>) -> Result<Backend> {
    let environment = library::environment(settings, &place.name)?;
    let version = place.model_dir.join(place.version.to_string());
    let path = version.join(&config.default_model_filename);
    Ok(Backend::Local(Arc::new(Opener { environment, path, model: config.name.clone() })))
}

struct Opener {
    environment: &'static Environment,
    path: PathBuf,
    model: Arc<str>,
}

impl OpenLocal for Opener {
    fn placement(&self) -> Placement {
        Placement::Own
    }

    fn open(&self, instance: &InstanceName) -> Result<Box<dyn Executor>> {
        let instance = device::settled(self.environment, &self.model, instance)?;
        let cuda = CUDA::default().with_device_id(instance.device).build().error_on_failure();
        let providers = if instance.kind == "GPU" { vec![cuda] } else { Vec::new() };
        let failed =
            |error: &dyn std::fmt::Display| Error::internal(format!("'{}': {error}", self.model));
        let builder = Session::builder(self.environment).map_err(|it| failed(&it))?;
        let builder = builder.with_execution_providers(providers);
        let mut builder = builder.map_err(|it| failed(&it))?;
        builder.commit_from_file(&self.path).map_err(|it| failed(&it))?;
        Ok(Box::new(Opened))
    }
}

/// A model that loads and does not run.
struct Opened;

impl Executor for Opened {
    fn execute(&mut self, _: Tensors, _: u32) -> Result<Tensors> {
        Err(Error::unsupported("ONNX models do not run yet"))
    }
}
