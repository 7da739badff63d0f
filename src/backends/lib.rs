//! What runs models: native operators, ONNX Runtime, Python workers.

mod findings;
pub mod gpus;
pub mod native;
pub mod onnx;
mod provision;
pub mod python;

use std::{path::Path, sync::Arc, time::Instant};

pub use findings::ModelFindings;
use troupe_base::{
    backend::{Backend, ModelFiles, Settings},
    config::ModelConfig,
    error::Result,
};

/// One kind of model, by its name in `backend:`.
struct BackendEntry {
    /// As configs spell it.
    name: &'static str,
    complete: fn(&Backends, &Settings, &ModelFiles, &str) -> Result<Option<String>>,
    prepare: fn(&Backends, &Settings, &ModelFiles, Arc<ModelConfig>) -> Result<Backend>,
    inspect: fn(&Settings, &ModelFiles, &str) -> Result<Option<String>>,
    check: fn(&Settings, &ModelFiles, Arc<ModelConfig>) -> Result<ModelFindings>,
}

const KINDS: &[BackendEntry] = &[
    BackendEntry {
        name: "native",
        complete: |_, _, _, _| Ok(None),
        prepare: |_, _, _, config| native::prepare(config),
        inspect: |_, _, _| Ok(None),
        check: |_, _, config| native::prepare(config).map(|_| ModelFindings::default()),
    },
    BackendEntry {
        name: "onnxruntime",
        complete: |_, settings, files, config| onnx::complete(settings, files, config),
        prepare: |_, settings, files, config| onnx::prepare(settings, files, config),
        inspect: |settings, files, config| onnx::inspect(settings, files, config),
        check: |_, files, config| {
            let problems = onnx::problems(files, &config)?;
            Ok(ModelFindings { problems, ..ModelFindings::default() })
        },
    },
    BackendEntry {
        name: "python",
        complete: |all, settings, files, config| {
            python::complete(&all.python, settings, files, config)
        },
        prepare: |all, settings, files, config| {
            python::prepare(&all.python, settings, files, config)
        },
        inspect: |_, _, _| Ok(None),
        check: |settings, files, config| python::check(settings, files, &config),
    },
];

/// The backends of one server, with what their models share: the processes of Python models.
/// Clones are handles of the same.
#[derive(Clone, Debug, Default)]
pub struct Backends {
    python: Arc<python::Runtime>,
}

impl Backends {
    /// Starts nothing before a model needs it.
    pub fn new() -> Backends {
        Backends::default()
    }

    /// The backend called `name`.
    pub fn find(&self, name: &str) -> Option<BackendKind<'_>> {
        let kind = KINDS.iter().find(|kind| kind.name == name)?;
        Some(BackendKind { all: self, kind })
    }

    /// Runs the function of the pipeline in `file` once, to see which ensemble it is; `configs` are
    /// those of the models it calls, a list in JSON, or `null` while they are not known. Blocks.
    pub fn trace_pipeline(
        &self,
        settings: &Settings,
        files: &ModelFiles,
        file: &Path,
        configs: &str,
    ) -> Result<python::TracedPipeline> {
        python::trace(&self.python, settings, files, file, configs)
    }

    /// Waits until no worker process is left; kills what is left at the deadline. No worker can be
    /// started after this was called. Blocks.
    pub fn wait_for_workers(&self, deadline: Instant) {
        self.python.wait_for_workers(deadline);
    }
}

/// One backend of a server.
pub struct BackendKind<'a> {
    all: &'a Backends,
    kind: &'static BackendEntry,
}

impl BackendKind<'_> {
    /// Fills in what a config lacks: ModelConfig JSON in, completed JSON out, `None` for no change.
    /// Called on a loading thread; may block.
    pub fn complete(
        &self,
        settings: &Settings,
        files: &ModelFiles,
        config: &str,
    ) -> Result<Option<String>> {
        (self.kind.complete)(self.all, settings, files, config)
    }

    /// What `complete` would fill in, as far as the model's files tell without running anything.
    /// Blocks.
    pub fn inspect(
        &self,
        settings: &Settings,
        files: &ModelFiles,
        config: &str,
    ) -> Result<Option<String>> {
        (self.kind.inspect)(settings, files, config)
    }

    /// Compares the finished config with the model's files, without loading it. Blocks.
    pub fn check(
        &self,
        settings: &Settings,
        files: &ModelFiles,
        config: Arc<ModelConfig>,
    ) -> Result<ModelFindings> {
        (self.kind.check)(settings, files, config)
    }

    /// Checks the finished config and prepares to open instances. Called on a loading thread; may
    /// block.
    pub fn prepare(
        &self,
        settings: &Settings,
        files: &ModelFiles,
        config: Arc<ModelConfig>,
    ) -> Result<Backend> {
        (self.kind.prepare)(self.all, settings, files, config)
    }
}

/// The settings that backends look at, as `(backend, key)`.
pub const SETTINGS: &[(&str, &str)] = &[
    ("", "default-max-batch-size"),
    ("onnxruntime", "default-max-batch-size"),
    ("onnxruntime", "enable-global-threadpool"),
    ("onnxruntime", "library"),
    ("python", "cache"),
    ("python", "python"),
    ("python", "shm-default-byte-size"),
    ("python", "shm-growth-byte-size"),
    ("python", "shm-max-byte-size"),
];

/// The backends that configs may name.
pub fn names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}
