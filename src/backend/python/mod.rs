//! Python models: a worker process per instance, forked with numpy already loaded.

mod connection;
mod decode;
mod encode;
mod environment;
mod host;
mod keeper;
mod limits;
mod lines;
mod messages;
mod metrics;
mod passing;
mod process;
mod remote;
mod segments;
mod sources;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use parking_lot::Mutex;

use self::{
    environment::Wishes,
    host::Host,
    process::{Launched, Orders, Recipe, Refused, launch},
};
pub use self::{keeper::wait_for_workers, limits::sizes};
use super::{Backend, InstanceName, OpenRemote, Place, Remote, Settings, StartRemote};
use crate::{
    config::{ModelConfig, json},
    error::{Error, Result},
    tensor::SegmentPool,
};

/// The file of a model that names none.
const MODEL_FILE: &str = "model.py";

/// Runs `auto_complete_config` in a worker of its own, if the model has it.
pub fn complete(settings: &Settings, place: &Place, config: &str) -> Result<Option<String>> {
    let parsed: serde_json::Value = serde_json::from_str(config)
        .map_err(|error| Error::internal(format!("the configuration is no JSON: {error}")))?;
    let file = parsed["default_model_filename"].as_str().unwrap_or_default();
    let path = model_file(place, file)?;
    if !may_complete(&path) {
        return Ok(None);
    }
    let wishes = Wishes {
        settings,
        place,
        execution_env: parsed["parameters"]["EXECUTION_ENV_PATH"]["string_value"].as_str(),
    };
    let orders = Orders { complete: true, model_config: config.into(), ..orders(place, &path) };
    let recipe = Recipe {
        host: Mutex::new(environment::host(&wishes)?),
        orders,
        model: place.name.as_str().into(),
        instance: place.name.as_str().into(),
        metrics: settings.metrics.clone(),
        copied: settings.metrics.copied_bytes(&place.name).into(),
    };
    Ok(launch(&recipe).map_err(|it| explained(it, &wishes))?.config)
}

/// A plain class without the method's name anywhere cannot have it: that saves a process.
fn may_complete(path: &std::path::Path) -> bool {
    let source = std::fs::read_to_string(path).unwrap_or_default();
    source.contains("auto_complete_config") || !source.contains("class TritonPythonModel:")
}

/// Finds the model's file and its interpreter.
pub fn prepare(settings: &Settings, place: &Place, config: Arc<ModelConfig>) -> Result<Backend> {
    if !config.batch_inputs.is_empty() || config.outputs.iter().any(|it| it.scatter.is_some()) {
        return Err(Error::unsupported(format!(
            "Python models see each request by itself, so '{}' can have no batch_input and no \
             batch_output",
            config.name
        )));
    }
    let path = model_file(place, &config.default_model_filename)?;
    let wishes = Wishes {
        settings,
        place,
        execution_env: config.parameters.get("EXECUTION_ENV_PATH").map(String::as_str),
    };
    let host = environment::host(&wishes)?;
    let (settings, place) = (settings.clone(), place.clone());
    Ok(Backend::Remote(Arc::new(Opener { settings, place, config, path, host })))
}

struct Opener {
    settings: Settings,
    place: Place,
    config: Arc<ModelConfig>,
    path: PathBuf,
    host: Arc<Host>,
}

impl OpenRemote for Opener {
    fn open(&self, instance: &InstanceName) -> Result<StartRemote> {
        let json = json::print(&self.config.proto);
        let args = BTreeMap::from([
            ("model_config", json.clone()),
            ("model_instance_kind", instance.kind.to_owned()),
            ("model_instance_name", instance.name.clone()),
            ("model_instance_device_id", instance.device.to_string()),
            ("model_repository", self.place.model_dir.display().to_string()),
            ("model_version", self.place.version.to_string()),
            ("model_name", self.place.name.clone()),
        ]);
        let orders = Orders { model_config: json, args, ..orders(&self.place, &self.path) };
        let recipe = Arc::new(Recipe {
            host: Mutex::new(self.host.clone()),
            orders,
            model: self.config.name.clone(),
            instance: instance.name.as_str().into(),
            metrics: self.settings.metrics.clone(),
            copied: self.settings.metrics.copied_bytes(&self.config.name).into(),
        });
        let wishes = Wishes {
            settings: &self.settings,
            place: &self.place,
            execution_env: self.config.parameters.get("EXECUTION_ENV_PATH").map(String::as_str),
        };
        let launched: Launched = launch(&recipe).map_err(|it| explained(it, &wishes))?;
        let (config, health) = (self.config.clone(), instance.health.clone());
        Ok(Box::new(move || {
            let worker = remote::attach(remote::Fixed { recipe, config, health }, launched)?;
            Ok(Box::new(worker) as Box<dyn Remote>)
        }))
    }
}

/// A missing module comes with what to do about it.
fn explained(refused: Refused, wishes: &Wishes<'_>) -> Error {
    if !refused.is_import {
        return refused.error;
    }
    Error::internal(format!("{}\n{}", refused.error, environment::advice(wishes)))
}

fn orders(place: &Place, path: &std::path::Path) -> Orders {
    Orders {
        model_name: place.name.clone(),
        model_version: place.version.to_string(),
        path: path.display().to_string(),
        model_dir: place.model_dir.display().to_string(),
        shm_growth: SegmentPool::shared().sizes().growth,
        shm_kept: SegmentPool::shared().sizes().kept,
        ..Orders::default()
    }
}

fn model_file(place: &Place, name: &str) -> Result<PathBuf> {
    let name = if name.is_empty() { MODEL_FILE } else { name };
    if !name.ends_with(".py") {
        return Err(Error::invalid(format!(
            "Model name must end with '.py'. Model name is \"{name}\"."
        )));
    }
    let path = place.model_dir.join(place.version.to_string()).join(name);
    let path = std::path::absolute(&path).unwrap_or(path);
    if !path.is_file() {
        return Err(Error::not_found(format!(
            "Python model file not found in '{}'",
            path.display()
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests;
