//! Finds the ONNX Runtime library, fetches it if there is none, and starts it once for all models.

mod log;
mod places;

use std::{
    error::Error as _,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Instant,
};

use ort::{LoadDynamicError, environment::Environment};
use parking_lot::Mutex;

use crate::provision::{base, failed};
use troupe_base::{
    backend::Settings,
    error::{Error, Result},
};

/// What pip is asked for.
const REQUIREMENT: &str = "onnxruntime>=1.20,<2";
/// The setting that names the library.
const SETTING: &str = "--backend-config=onnxruntime,library";
/// The variable that names the library.
const VARIABLE: &str = "ORT_DYLIB_PATH";

/// The runtime all sessions share, for `model` first. Blocks, and may take as long as pip takes.
///
/// What started stays, for all servers of this process: the library is loaded once, and has one
/// environment. A failure is everybody's who waited for it; later loads try again.
pub(super) fn environment(settings: &Settings, model: &str) -> Result<&'static Environment> {
    static STARTED: OnceLock<Environment> = OnceLock::new();
    static FAILURE: Mutex<Option<(Instant, Error)>> = Mutex::new(None);
    let asked = Instant::now();
    if let Some(environment) = STARTED.get() {
        return Ok(environment);
    }
    let mut failure = FAILURE.lock();
    if let Some(environment) = STARTED.get() {
        return Ok(environment);
    }
    if let Some((at, error)) = &*failure
        && asked < *at
    {
        return Err(error.clone());
    }
    let variable = std::env::var_os(VARIABLE).filter(|it| !it.is_empty()).map(PathBuf::from);
    let search = Search { settings, variable, start: &start };
    match search.find(model) {
        Ok(environment) => Ok(STARTED.get_or_init(|| environment)),
        Err(error) => {
            *failure = Some((Instant::now(), error.clone()));
            Err(error)
        }
    }
}

/// Where to look, and what is done with a library that is found.
struct Search<'a, T> {
    settings: &'a Settings,
    /// The value of `ORT_DYLIB_PATH`.
    variable: Option<PathBuf>,
    /// Fails with what is wrong with the library.
    start: &'a dyn Fn(&Path) -> Result<T, String>,
}

impl<T> Search<'_, T> {
    /// The library that was named, else the first that starts, else one that is fetched.
    fn find(&self, model: &str) -> Result<T> {
        let setting = self.settings.get("onnxruntime", "library").map(PathBuf::from);
        let variable = || self.variable.clone().map(|it| (it, VARIABLE));
        if let Some((path, by)) = setting.map(|it| (it, SETTING)).or_else(variable) {
            let library = places::named(&path).map_err(|it| failed(by, &it))?;
            return (self.start)(&library).map_err(|it| failed(by, &it));
        }
        let mut looked = Vec::new();
        for place in [places::package, places::system] {
            match place(self.settings) {
                Ok(libraries) => {
                    if let Some(started) = self.first(&libraries, &mut looked) {
                        return Ok(started);
                    }
                }
                Err(text) => looked.push(text),
            }
        }
        if !self.settings.provision {
            return Err(self.missing(&looked));
        }
        let fetched = places::fetched(self.settings, model, REQUIREMENT);
        fetched.map_err(|it| it.to_string()).and_then(|it| (self.start)(&it)).map_err(|text| {
            looked.push(text);
            self.missing(&looked)
        })
    }

    fn first(&self, libraries: &[PathBuf], looked: &mut Vec<String>) -> Option<T> {
        libraries.iter().find_map(|library| {
            (self.start)(library)
                .inspect_err(|text| {
                    // A name alone is a question to the system; a file should have worked.
                    if library.is_absolute() {
                        tracing::warn!("{text}; looking for another ONNX Runtime");
                    }
                    looked.push(text.clone());
                })
                .ok()
        })
    }

    fn missing(&self, looked: &[String]) -> Error {
        let or = if self.settings.provision { "" } else { ", start without --provision=never," };
        Error::internal(format!(
            "no ONNX Runtime library to run the model with: {}; run `{} -m pip install \
             '{REQUIREMENT}'`{or} or name one with {SETTING}=PATH",
            looked.join("; "),
            base(self.settings).display()
        ))
    }
}

/// Loads a library for good and starts its environment.
fn start(library: &Path) -> Result<Environment, String> {
    let builder = ort::init_from(library).map_err(|error| refused(library, &error))?;
    let environment = builder
        .with_name("troupe")
        .with_telemetry(false)
        .with_logger(log::logger())
        .build()
        .map_err(|error| format!("ONNX Runtime '{}' does not start: {error}", library.display()))?;
    environment.set_log_level(log::level());
    tracing::info!("ONNX models run with {}", library.display());
    Ok(environment)
}

fn refused(library: &Path, error: &LoadDynamicError) -> String {
    let path = library.display();
    match error {
        LoadDynamicError::Dlopen { error, .. } => {
            // The reason is in its source, when there is one.
            let reason = error.source().map_or_else(|| error.to_string(), |it| it.to_string());
            format!("cannot load '{path}': {reason}")
        }
        LoadDynamicError::BadVersion { version_str, .. } => format!(
            "'{path}' is ONNX Runtime {version_str}, expected 1.{} or later",
            ort::MINOR_VERSION
        ),
        LoadDynamicError::MissingApi { .. } | LoadDynamicError::InvalidVersionString => {
            format!("'{path}' is not an ONNX Runtime library")
        }
    }
}

#[cfg(test)]
mod tests;
