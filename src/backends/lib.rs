//! What runs models: native operators, ONNX Runtime, Python workers.

pub mod gpus;
pub mod native;
pub mod onnx;
mod provision;
pub mod python;

use std::sync::Arc;

use troupe_base::{
    backend::{
        Backend, Batch, Executor, InstanceName, OpenLocal, OpenRemote, Place, Placement, Remote,
        Settings, StartRemote, Tensors,
    },
    config::ModelConfig,
    error::Result,
};

/// One kind of model, by its name in `backend:`.
pub struct Kind {
    /// As configs spell it.
    pub name: &'static str,
    /// Fills in what a config lacks: ModelConfig JSON in, completed JSON out, `None` for no change.
    /// Called on a loading thread; may block.
    pub complete: fn(&Settings, &Place, &str) -> Result<Option<String>>,
    /// Checks the finished config and prepares to open instances. Called on a loading thread.
    pub prepare: fn(&Settings, &Place, Arc<ModelConfig>) -> Result<Backend>,
}

const KINDS: &[Kind] = &[
    Kind { name: "native", complete: |_, _, _| Ok(None), prepare: native::prepare },
    Kind { name: "onnxruntime", complete: onnx::complete, prepare: onnx::prepare },
    Kind { name: "python", complete: python::complete, prepare: python::prepare },
];

/// The kind called `name`.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|it| it.name == name)
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

/// What configs may name, for messages.
pub fn names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|it| it.name)
}
