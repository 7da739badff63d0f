//! Looks at a Python model without running its code: its file parses and holds a model, and what it
//! imports is there.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    limits,
    opener::{checked, may_complete, model_file},
    process::environment,
};
use crate::{findings::ModelFindings, provision::base};
use troupe_base::{
    backend::{ModelFiles, Settings},
    config::{ModelConfig, Problem, SourcePosition},
    error::{Error, Result},
};

const SCRIPT: &str = include_str!("py/source_check.py");

/// What the script prints.
#[derive(Deserialize)]
struct SourceReport {
    /// Lines, 0 for the whole file, with what is wrong there.
    problems: Vec<(u32, String)>,
    /// Modules that the interpreter does not find, with the lines that import them.
    missing: Vec<(String, u32)>,
    /// The file does not parse.
    is_broken: bool,
    /// Nothing in the file changes where modules are looked for.
    is_sure: bool,
}

/// What a load would find in the model's file before it runs it. Starts an interpreter; blocks.
pub fn check(
    settings: &Settings,
    files: &ModelFiles,
    config: &ModelConfig,
) -> Result<ModelFindings> {
    let path = model_file(files, &config.default_model_filename)?;
    let version = files.model_dir.join(files.version.to_string());
    let python = base(settings);
    let report = look(&python, &path, [&version, &files.model_dir], &tensors(config))?;
    checked(config)?;
    let execution_env = config.parameters.get(limits::ENVIRONMENT);
    if let Some(written) = execution_env {
        environment::named(files, written)?;
    }
    // As people wrote the folder, not as the server sees it.
    let shown = path.file_name().map_or_else(|| path.clone(), |name| version.join(name));
    let at = |line: u32, text: String| {
        let file = shown.display().to_string();
        Problem { position: SourcePosition { file, line, column: 1 }, text }
    };
    let mut found = ModelFindings {
        problems: report.problems.into_iter().map(|(line, text)| at(line, text)).collect(),
        warnings: limits::misspelled(config),
        completes_itself: may_complete(&path),
        is_broken: report.is_broken,
    };
    // Another environment, or one that is made at load, may have them.
    let has_own = execution_env.is_some() || environment::requirements(files).is_some();
    let missing = report.missing.into_iter().filter(|_| !has_own);
    let missing = missing.map(|(name, line)| at(line, not_installed(&name, &python)));
    match report.is_sure {
        true => found.problems.extend(missing),
        false => found.warnings.extend(missing.map(|it| it.to_string())),
    }
    Ok(found)
}

/// Inputs and outputs, with their types, dims and what they are, as the script compares them with
/// hints.
fn tensors(config: &ModelConfig) -> Value {
    let is_control = |name: &str| {
        config.sequences().is_some_and(|it| it.controls.iter().any(|it| *it.name == *name))
    };
    let inputs = config.inputs.iter().map(|it| {
        let is_state = config.states().iter().any(|state| state.input == it.name);
        let other = if is_state { "the state" } else { "input" };
        let what = if is_control(&it.name) { "control input" } else { other };
        (it.name.to_string(), json!([it.dtype.config_name(), it.dims, what]))
    });
    let outputs = config.outputs.iter().map(|it| {
        let is_state = config.states().iter().any(|state| state.output == it.name);
        let what = if is_state { "the state" } else { "output" };
        (it.name.to_string(), json!([it.dtype.config_name(), it.dims, what]))
    });
    json!({
        "inputs": Map::from_iter(inputs),
        "outputs": Map::from_iter(outputs),
        "max_batch_size": config.max_batch_size,
    })
}

/// Has the script look at the file; `folders` are those that a worker imports from.
fn look(python: &Path, path: &Path, folders: [&Path; 2], tensors: &Value) -> Result<SourceReport> {
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).arg(path).args(folders);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().and_then(|mut child| {
        if let Some(mut input) = child.stdin.take() {
            // If it ended before it has read this, its output says why.
            let _ = input.write_all(tensors.to_string().as_bytes());
        }
        child.wait_with_output()
    });
    let output = output
        .map_err(|error| Error::internal(format!("cannot run {}: {error}", python.display())))?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        Error::internal(format!("{} cannot look at the file: {error}; {said}", python.display()))
    })
}

fn not_installed(name: &str, python: &Path) -> String {
    format!(
        "{} does not find the module '{name}': list it in a requirements.txt beside this file, or \
         install it",
        python.display()
    )
}
