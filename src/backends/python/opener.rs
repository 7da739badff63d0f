//! Opens Python models: finds file and interpreter, reads the parameters, starts workers.

use std::{collections::BTreeMap, num::NonZeroUsize, path::PathBuf, sync::Arc};

use parking_lot::Mutex;

use super::{
    limits::{self, Limits},
    process::{
        environment::{self, InterpreterChoice},
        fork_server::ForkServer,
        launch_spec::{LaunchSpec, PendingStart, Source, WorkerSetup},
        preload::Preload,
        worker_process::{LaunchError, Launched, launch},
    },
    runtime::Runtime,
    worker::link::{InstanceSetup, attach},
};
use troupe_base::{
    backend::{Backend, InstanceName, ModelFiles, OpenRemote, Remote, Settings, StartRemote},
    config::{ModelConfig, json, parse_bytes},
    error::{Error, Result},
};

/// The file of a model that names none.
const MODEL_FILE: &str = "model.py";

/// The parameter that says how many executions a worker may have in work at once; for models whose
/// `execute` is a coroutine function.
const MAX_CONCURRENT: &str = "MAX_CONCURRENT_EXECUTIONS";
/// Where a config does not say.
const CONCURRENT: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");
/// More is taken for a mistake.
const MOST_CONCURRENT: NonZeroUsize = NonZeroUsize::new(1 << 16).expect("it is not zero");

/// Runs `auto_complete_config` in a worker of its own, if the model has it.
pub fn complete(
    _runtime: &Arc<Runtime>,
    settings: &Settings,
    files: &ModelFiles,
    config: &str,
) -> Result<Option<String>> {
    let parsed: serde_json::Value = serde_json::from_str(config)
        .map_err(|error| Error::internal(format!("the configuration is no JSON: {error}")))?;
    let file = parsed["default_model_filename"].as_str().unwrap_or_default();
    let path = model_file(files, file)?;
    if !may_complete(&path) {
        return Ok(None);
    }
    let parameter = |key: &str| parsed["parameters"][key]["string_value"].as_str();
    let choice =
        InterpreterChoice { settings, files, execution_env: parameter("EXECUTION_ENV_PATH") };
    let setup = WorkerSetup {
        complete: true,
        // One that is wrong is refused with the finished config.
        memory_limit: parameter(limits::MEMORY_LIMIT).and_then(parse_bytes),
        model_config: config.into(),
        ..setup(settings, files, &path)
    };
    let spec = LaunchSpec {
        source: Source::Interpreter(Mutex::new(environment::host(&choice)?)),
        setup,
        time_limit: parameter(limits::INITIALIZE_TIMEOUT).and_then(limits::milliseconds),
        model: files.name.as_str().into(),
        instance: files.name.as_str().into(),
        lookup: None,
        starting: PendingStart::default(),
        metrics: settings.metrics.clone(),
        copied: settings.metrics.copied_bytes(&files.name).into(),
        pool: settings.segments.clone(),
    };
    Ok(launch(&spec).map_err(|it| explained(it, &choice))?.ready.config)
}

/// A plain class without the method's name anywhere cannot have it: that saves a process.
fn may_complete(path: &std::path::Path) -> bool {
    let source = std::fs::read_to_string(path).unwrap_or_default();
    source.contains("auto_complete_config") || !source.contains("class TritonPythonModel:")
}

/// Finds the model's file and its interpreter.
pub fn prepare(
    _runtime: &Arc<Runtime>,
    settings: &Settings,
    files: &ModelFiles,
    config: Arc<ModelConfig>,
) -> Result<Backend> {
    if !config.batch_inputs.is_empty() || config.outputs.iter().any(|it| it.scatter.is_some()) {
        return Err(Error::unsupported(format!(
            "Python models see each request by itself, so '{}' can have no batch_input and no \
             batch_output",
            config.name
        )));
    }
    let concurrency = wanted_concurrency(&config)?;
    let path = model_file(files, &config.default_model_filename)?;
    let limits = Limits::of(&config)?;
    let choice = InterpreterChoice {
        settings,
        files,
        execution_env: config.parameters.get("EXECUTION_ENV_PATH").map(String::as_str),
    };
    let host = environment::host(&choice)?;
    let (settings, files) = (settings.clone(), files.clone());
    let mut opener =
        Opener { settings, files, config, path, host, concurrency, limits, preload: None };
    if limits.preload {
        let setup = WorkerSetup { template: true, ..opener.setup(opener.arguments()) };
        opener.preload = Some(Preload::new(LaunchSpec {
            source: Source::Interpreter(Mutex::new(opener.host.clone())),
            setup,
            time_limit: limits.initialize,
            model: opener.config.name.clone(),
            instance: format!("{} (template)", opener.config.name).into(),
            lookup: None,
            starting: PendingStart::default(),
            metrics: opener.settings.metrics.clone(),
            copied: opener.settings.metrics.copied_bytes(&opener.config.name).into(),
            pool: opener.settings.segments.clone(),
        }));
    }
    Ok(Backend::Remote(Arc::new(opener)))
}

/// The parameter of the config, if it has it.
fn wanted_concurrency(config: &ModelConfig) -> Result<Option<NonZeroUsize>> {
    let Some(text) = config.parameters.get(MAX_CONCURRENT) else { return Ok(None) };
    let number = text.trim().parse().ok().filter(|it| *it <= MOST_CONCURRENT);
    number.map(Some).ok_or_else(|| {
        Error::invalid(format!(
            "parameter '{MAX_CONCURRENT}' of model '{}' is '{text}', expected a number from 1 to \
             {MOST_CONCURRENT}",
            config.name
        ))
    })
}

struct Opener {
    settings: Settings,
    files: ModelFiles,
    config: Arc<ModelConfig>,
    path: PathBuf,
    host: Arc<ForkServer>,
    /// As the config wants it.
    concurrency: Option<NonZeroUsize>,
    limits: Limits,
    preload: Option<Arc<Preload>>,
}

impl Opener {
    /// What `initialize` is given of every instance, and `preload` of none.
    fn arguments(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("model_config", json::print(&self.config.proto)),
            ("model_repository", self.files.model_dir.display().to_string()),
            ("model_version", self.files.version.to_string()),
            ("model_name", self.files.name.clone()),
        ])
    }

    fn setup(&self, args: BTreeMap<&'static str, String>) -> WorkerSetup {
        WorkerSetup {
            memory_limit: self.limits.memory,
            execute_timeout_ms: self.limits.execute.map(|it| it.as_millis() as u64),
            model_config: args["model_config"].clone(),
            args,
            ..setup(&self.settings, &self.files, &self.path)
        }
    }

    fn source(&self) -> Source {
        match &self.preload {
            Some(preload) => Source::Preloaded(preload.clone()),
            None => Source::Interpreter(Mutex::new(self.host.clone())),
        }
    }
}

impl OpenRemote for Opener {
    fn open(&self, instance: &InstanceName) -> Result<StartRemote> {
        let mut args = self.arguments();
        args.extend([
            ("model_instance_kind", instance.kind.to_owned()),
            ("model_instance_name", instance.name.clone()),
            ("model_instance_device_id", instance.device.to_string()),
        ]);
        let spec = Arc::new(LaunchSpec {
            source: self.source(),
            setup: self.setup(args),
            time_limit: self.limits.initialize,
            model: self.config.name.clone(),
            instance: instance.name.as_str().into(),
            lookup: self.settings.lookup.clone(),
            starting: PendingStart::default(),
            metrics: self.settings.metrics.clone(),
            copied: self.settings.metrics.copied_bytes(&self.config.name).into(),
            pool: self.settings.segments.clone(),
        });
        let choice = InterpreterChoice {
            settings: &self.settings,
            files: &self.files,
            execution_env: self.config.parameters.get("EXECUTION_ENV_PATH").map(String::as_str),
        };
        let launched: Launched = launch(&spec).map_err(|it| explained(it, &choice))?;
        let concurrency = self.concurrency_of(&launched)?;
        let has_check = launched.ready.has_check;
        let (config, health) = (self.config.clone(), instance.health.clone());
        let (version, time_limit) = (self.files.version, self.limits.execute);
        Ok(Box::new(move || {
            let fixed =
                InstanceSetup { spec, config, health, version, concurrency, has_check, time_limit };
            let worker = attach(fixed, launched)?;
            Ok(Box::new(worker) as Box<dyn Remote>)
        }))
    }
}

impl Opener {
    /// Only coroutines give way to others while they wait.
    fn concurrency_of(&self, launched: &Launched) -> Result<Option<NonZeroUsize>> {
        if launched.ready.is_async {
            return Ok(Some(self.concurrency.unwrap_or(CONCURRENT)));
        }
        if self.concurrency.is_none() {
            return Ok(None);
        }
        Err(Error::invalid(format!(
            "model '{}' has the parameter '{MAX_CONCURRENT}', which is for models whose `execute` \
             is a coroutine function",
            self.config.name
        )))
    }
}

/// A missing module comes with what to do about it.
fn explained(refused: LaunchError, choice: &InterpreterChoice<'_>) -> Error {
    if !refused.is_import {
        return refused.error;
    }
    Error::internal(format!("{}\n{}", refused.error, environment::advice(choice)))
}

fn setup(settings: &Settings, files: &ModelFiles, path: &std::path::Path) -> WorkerSetup {
    let sizes = settings.segments.sizes();
    WorkerSetup {
        model_name: files.name.clone(),
        model_version: files.version.to_string(),
        path: path.display().to_string(),
        model_dir: files.model_dir.display().to_string(),
        shm_growth: sizes.growth,
        shm_kept: sizes.kept,
        ..WorkerSetup::default()
    }
}

fn model_file(files: &ModelFiles, name: &str) -> Result<PathBuf> {
    let name = if name.is_empty() { MODEL_FILE } else { name };
    if !name.ends_with(".py") {
        return Err(Error::invalid(format!(
            "Model name must end with '.py'. Model name is \"{name}\"."
        )));
    }
    let path = files.model_dir.join(files.version.to_string()).join(name);
    let path = std::path::absolute(&path).unwrap_or(path);
    if !path.is_file() {
        return Err(Error::not_found(format!(
            "Python model file not found in '{}'",
            path.display()
        )));
    }
    Ok(path)
}
