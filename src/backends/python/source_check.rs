//! Looks at a Python model without running its code: its file parses, and what it imports is there.

use std::{path::Path, process::Command};

use serde::Deserialize;

use super::{
    limits::{self, WorkerLimits},
    opener::{may_complete, model_file},
};
use crate::{findings::ModelFindings, provision::base};
use troupe_base::{
    backend::{ModelFiles, Settings},
    config::ModelConfig,
    error::{Error, Result},
};

const SCRIPT: &str = include_str!("py/source_check.py");

#[derive(Deserialize)]
struct SourceReport {
    problem: Option<String>,
    /// Modules that the interpreter does not find, with the lines that import them.
    missing: Vec<(String, u32)>,
}

/// What a load would find in the model's file before it runs it. Starts an interpreter; blocks.
pub fn check(
    settings: &Settings,
    files: &ModelFiles,
    config: &ModelConfig,
) -> Result<ModelFindings> {
    let path = model_file(files, &config.default_model_filename)?;
    let python = base(settings);
    let version = files.model_dir.join(files.version.to_string());
    let output = Command::new(&python)
        .args(["-c", SCRIPT])
        .args([&path, &version, &files.model_dir])
        .output()
        .map_err(|error| Error::internal(format!("cannot run {}: {error}", python.display())))?;
    let report: SourceReport = serde_json::from_slice(&output.stdout).map_err(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        Error::internal(format!("{} cannot look at the file: {error}; {said}", python.display()))
    })?;
    if let Some(text) = report.problem {
        return Err(Error::invalid(text));
    }
    // Another environment, or one that is made at load, may have them.
    let has_own = config.parameters.contains_key(limits::ENVIRONMENT)
        || [&version, &files.model_dir].iter().any(|it| it.join("requirements.txt").is_file());
    WorkerLimits::of(config)?;
    let missing = report.missing.into_iter().filter(|_| !has_own);
    let mut warnings: Vec<_> =
        missing.map(|(name, line)| not_installed(&path, line, &name, &python)).collect();
    warnings.extend(limits::misspelled(config));
    Ok(ModelFindings {
        warnings,
        completes_itself: may_complete(&path),
        ..ModelFindings::default()
    })
}

fn not_installed(path: &Path, line: u32, name: &str, python: &Path) -> String {
    format!(
        "{}:{line}: {} does not find the module '{name}': list it in a requirements.txt beside this \
         file, or install it",
        path.display(),
        python.display()
    )
}
