//! Finds the ONNX Runtime library, and loads it once.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use ort::{environment::Environment, logging::LogLevel};
use parking_lot::Mutex;

use crate::{
    backend::Settings,
    error::{Error, Result},
};

/// There may be one in a process, ever.
static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

/// What sessions are made in; loads the library at the first call. Blocks.
pub(super) fn environment(settings: &Settings, model: &str) -> Result<&'static Environment> {
    let _one_at_a_time = LOADING.lock();
    if let Some(environment) = ENVIRONMENT.get() {
        return Ok(environment);
    }
    let failed = |text: String| {
        Error::unavailable(format!("model '{model}' needs ONNX Runtime, which {text}"))
    };
    let library = library(settings).ok_or_else(|| failed("was not found".to_owned()))?;
    let loaded = ort::init_from(&library).map_err(|error| failed(error.to_string()))?;
    let environment = loaded.with_name("troupe").with_telemetry(false).build();
    let environment = environment.map_err(|error| failed(error.to_string()))?;
    environment.set_log_level(LogLevel::Warning);
    Ok(ENVIRONMENT.get_or_init(|| environment))
}

/// The file that `ORT_DYLIB_PATH` names, else the one of the Python package.
fn library(settings: &Settings) -> Option<PathBuf> {
    if let Some(named) = env::var_os("ORT_DYLIB_PATH") {
        return Some(named.into());
    }
    let python = settings.get("python", "python").unwrap_or("python3");
    let program = "import importlib.util as u; print(u.find_spec('onnxruntime').origin)";
    let output = Command::new(python).args(["-c", program]).output().ok()?;
    let origin = String::from_utf8(output.stdout).ok()?;
    let folder = Path::new(origin.trim()).parent()?.join("capi");
    let mut entries = fs::read_dir(folder).ok()?.flatten().map(|it| it.path());
    entries.find(|it| {
        let name = it.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libonnxruntime.so")
    })
}
