//! Opens Python models: finds file and interpreter, reads the parameters, starts workers.

use std::{collections::BTreeMap, num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration};

use super::{
    limits::{self, CONCURRENCY, WorkerLimits},
    process::{
        environment::{self, InterpreterChoice},
        fork_server::{ForkServer, ForkServers, Interpreter},
        launch::{Launched, launch},
        launch_spec::{
            LaunchCause, LaunchError, LaunchSpec, ParentSource, PendingStart, WorkerSetup,
        },
        preload::Preload,
        source_snapshot::SourceSnapshot,
    },
    runtime::Runtime,
    worker::{InstanceSetup, SpinPolicy, attach},
};
use troupe_base::{
    backend::{Backend, InstanceName, ModelFiles, OpenRemote, OpenedRemote, Remote, Settings},
    config::{ModelConfig, json, parse_bytes},
    error::{Error, Result},
    failure_log::FailureLog,
    files::{instead_of, not_fetched},
};

/// The file of a model that names none.
const MODEL_FILE: &str = "model.py";

/// Executions in work at once where a config does not say.
const DEFAULT_CONCURRENCY: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");
/// More is taken for a mistake.
const MAX_CONCURRENCY: NonZeroUsize = NonZeroUsize::new(1 << 16).expect("it is not zero");

/// Runs `auto_complete_config` in a worker of its own, if the model has it.
pub fn complete(
    runtime: &Runtime,
    settings: &Settings,
    files: &ModelFiles,
    config: &str,
) -> Result<Option<String>> {
    let parsed: serde_json::Value = serde_json::from_str(config)
        .map_err(|error| Error::internal(format!("the configuration is not JSON: {error}")))?;
    let file = parsed["default_model_filename"].as_str().unwrap_or_default();
    let path = model_file(files, file)?;
    if !may_complete(&path) {
        return Ok(None);
    }
    let parameter = |key: &str| parsed["parameters"][key]["string_value"].as_str();
    let servers = runtime.fork_servers()?;
    let execution_env = parameter(limits::ENVIRONMENT);
    let choice = InterpreterChoice { servers: &servers, settings, files, execution_env };
    let setup = WorkerSetup {
        complete: true,
        snapshot: snapshot(files, &path),
        // One that is wrong is refused with the finished config.
        memory_limit: parameter(limits::MEMORY_LIMIT).and_then(parse_bytes),
        model_config: config.into(),
        ..setup(settings, files, &path)
    };
    let time_limit = parameter(limits::INITIALIZE_TIMEOUT).and_then(limits::milliseconds);
    answer(&choice, setup, time_limit).map_err(|failed| explained(failed, &choice))
}

/// What a worker answers that is started for one question only. Blocks.
pub(super) fn answer(
    choice: &InterpreterChoice<'_>,
    setup: WorkerSetup,
    time_limit: Option<Duration>,
) -> Result<Option<String>, LaunchError> {
    let InterpreterChoice { servers, settings, files, .. } = choice;
    let spec = LaunchSpec {
        parent: Box::new(Interpreter::new(environment::fork_server(choice)?)),
        reaper: servers.reaper.clone(),
        setup,
        time_limit,
        model: files.name.as_str().into(),
        instance: files.name.as_str().into(),
        lookup: None,
        starting: PendingStart::default(),
        metrics: settings.metrics.clone(),
        copied: settings.metrics.copied_bytes(&files.name).into(),
        pool: settings.segments.clone(),
    };
    Ok(launch(&spec)?.ready.config)
}

/// A plain class without the method's name anywhere cannot have it: that saves a process.
pub(super) fn may_complete(path: &std::path::Path) -> bool {
    let source = std::fs::read_to_string(path).unwrap_or_default();
    source.contains("auto_complete_config") || !source.contains("class TritonPythonModel:")
}

/// Finds the model's file and its interpreter.
pub fn prepare(
    runtime: &Runtime,
    settings: &Settings,
    files: &ModelFiles,
    config: Arc<ModelConfig>,
) -> Result<Backend> {
    let (concurrency, limits) = checked(&config)?;
    let path = model_file(files, &config.default_model_filename)?;
    for text in limits::misspelled(&config) {
        tracing::warn!(model = &*config.name, "{text}");
    }
    let servers = runtime.fork_servers()?;
    let execution_env = config.parameters.get(limits::ENVIRONMENT).map(String::as_str);
    let choice = InterpreterChoice { servers: &servers, settings, files, execution_env };
    let fork_server = environment::fork_server(&choice)?;
    let snapshot = snapshot(files, &path);
    if snapshot.is_cut {
        let model = &*config.name;
        tracing::warn!(
            model,
            "the folder of '{model}' has more Python files than are remembered: its workers read the \
             others as they are when they are imported, also after a restart"
        );
    }
    let failures = FailureLog::new(&config.name, files.version).into();
    let spin = runtime.spin(settings.spin);
    let (settings, files) = (settings.clone(), files.clone());
    let mut opener = PythonOpener {
        servers,
        settings,
        files,
        config,
        path,
        snapshot,
        fork_server,
        concurrency,
        limits,
        preload: None,
        failures,
        spin,
    };
    if limits.preload {
        let setup = WorkerSetup { template: true, ..opener.setup(opener.arguments()) };
        let instance = format!("{} (template)", opener.config.name);
        let spec = LaunchSpec { lookup: None, ..opener.spec(setup, &instance) };
        opener.preload = Some(Preload::new(spec));
    }
    Ok(Backend::Remote(Arc::new(opener)))
}

/// What the config wants of its workers; refuses what they cannot do.
pub(super) fn checked(config: &ModelConfig) -> Result<(Option<NonZeroUsize>, WorkerLimits)> {
    Ok((wanted_concurrency(config)?, WorkerLimits::of(config)?))
}

/// The parameter of the config, if it has it.
fn wanted_concurrency(config: &ModelConfig) -> Result<Option<NonZeroUsize>> {
    let Some(text) = config.parameters.get(CONCURRENCY) else { return Ok(None) };
    let number = text.trim().parse().ok().filter(|it| *it <= MAX_CONCURRENCY);
    number.map(Some).ok_or_else(|| {
        Error::invalid(format!(
            "parameter '{CONCURRENCY}' of model '{}' is '{text}', expected a number from 1 to \
             {MAX_CONCURRENCY}",
            config.name
        ))
    })
}

struct PythonOpener {
    servers: Arc<ForkServers>,
    settings: Settings,
    files: ModelFiles,
    config: Arc<ModelConfig>,
    path: PathBuf,
    snapshot: SourceSnapshot,
    fork_server: Arc<ForkServer>,
    /// As the config wants it.
    concurrency: Option<NonZeroUsize>,
    limits: WorkerLimits,
    preload: Option<Arc<Preload>>,
    failures: Arc<FailureLog>,
    spin: Arc<SpinPolicy>,
}

impl PythonOpener {
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
            inputs: self.config.executor_inputs().map(|(name, _)| name.to_string()).collect(),
            outputs: self.config.outputs.iter().map(|output| output.name.to_string()).collect(),
            args,
            snapshot: self.snapshot.clone(),
            ..setup(&self.settings, &self.files, &self.path)
        }
    }

    /// What starts workers of `instance`: children of the template once there is one.
    fn spec(&self, setup: WorkerSetup, instance: &str) -> LaunchSpec {
        let parent: Box<dyn ParentSource> = match &self.preload {
            Some(preload) => Box::new(preload.clone()),
            None => Box::new(Interpreter::new(self.fork_server.clone())),
        };
        LaunchSpec {
            parent,
            reaper: self.servers.reaper.clone(),
            setup,
            time_limit: self.limits.initialize,
            model: self.config.name.clone(),
            instance: instance.into(),
            lookup: self.settings.lookup.clone(),
            starting: PendingStart::default(),
            metrics: self.settings.metrics.clone(),
            copied: self.settings.metrics.copied_bytes(&self.config.name).into(),
            pool: self.settings.segments.clone(),
        }
    }
}

impl OpenRemote for PythonOpener {
    fn open(&self, instance: &InstanceName) -> Result<OpenedRemote> {
        let mut args = self.arguments();
        args.extend([
            ("model_instance_kind", instance.kind.to_owned()),
            ("model_instance_name", instance.name.clone()),
            ("model_instance_device_id", instance.device.to_string()),
        ]);
        let spec = Arc::new(self.spec(self.setup(args), &instance.name));
        let choice = InterpreterChoice {
            servers: &self.servers,
            settings: &self.settings,
            files: &self.files,
            execution_env: self.config.parameters.get(limits::ENVIRONMENT).map(String::as_str),
        };
        let launched = launch(&spec).map_err(|error| explained(error, &choice))?;
        let concurrency = self.concurrency_of(&launched)?;
        let has_check = launched.ready.has_check;
        let (config, health) = (self.config.clone(), instance.health.clone());
        let (version, time_limit) = (self.files.version, self.limits.execute);
        let (failures, spin) = (self.failures.clone(), self.spin.clone());
        let start = Box::new(move || {
            let fixed = InstanceSetup {
                spec,
                config,
                health,
                version,
                concurrency,
                has_check,
                time_limit,
                failures,
                spin,
            };
            let worker = attach(fixed, launched)?;
            Ok(Box::new(worker) as Box<dyn Remote>)
        });
        Ok(OpenedRemote { start, concurrency })
    }
}

impl PythonOpener {
    /// Only coroutines give way to others while they wait.
    fn concurrency_of(&self, launched: &Launched) -> Result<Option<NonZeroUsize>> {
        if launched.ready.is_async {
            return Ok(Some(self.concurrency.unwrap_or(DEFAULT_CONCURRENCY)));
        }
        if self.concurrency.is_none() {
            return Ok(None);
        }
        Err(Error::invalid(format!(
            "model '{}' has the parameter '{CONCURRENCY}', which is for models whose `execute` \
             is a coroutine function",
            self.config.name
        )))
    }
}

/// A missing module comes with what to do about it.
pub(super) fn explained(failed: LaunchError, choice: &InterpreterChoice<'_>) -> Error {
    if failed.cause != LaunchCause::Import {
        return failed.error;
    }
    Error::internal(format!("{}\n{}", failed.error, environment::advice(choice)))
}

pub(super) fn setup(
    settings: &Settings,
    files: &ModelFiles,
    path: &std::path::Path,
) -> WorkerSetup {
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

/// The Python files of the version and its model.
fn snapshot(files: &ModelFiles, path: &std::path::Path) -> SourceSnapshot {
    let version_dir = path.parent().unwrap_or(path);
    let model_dir = std::path::absolute(&files.model_dir);
    SourceSnapshot::read(version_dir, model_dir.as_ref().unwrap_or(&files.model_dir))
}

pub(super) fn model_file(files: &ModelFiles, name: &str) -> Result<PathBuf> {
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
            "Python model file not found in '{}'{}",
            path.display(),
            instead_of(&path)
        )));
    }
    if let Some(text) = not_fetched(&path) {
        return Err(Error::invalid(text));
    }
    Ok(path)
}
