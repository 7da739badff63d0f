//! Writes a model: a Python file, a copy of an ONNX file, or the config of a native op.

use std::{fs, path::Path, sync::Arc, time::Instant};

use super::{
    config_text, example,
    folder::{NewFolder, next_steps, told},
    ops, signature,
    wiring::StepTensor,
};
use crate::{Overrides, Settings, disk::definition, disk::scan, operation::open::finished_config};
use troupe_base::config::{self, ModelConfig};
use troupe_options::{NewModelArguments, NewTarget};

/// A model to begin with.
const PYTHON_MODEL: &str = include_str!("templates/model.py");
/// What it takes, as its hints say.
const PYTHON_SIGNATURE: &str = "backend: \"python\"
input { name: \"text\" data_type: TYPE_STRING dims: 1 }
output { name: \"output\" data_type: TYPE_STRING dims: 1 }
";

/// Writes it; what was made, and what to run next.
pub(super) fn create(asked: &NewModelArguments) -> Result<String, String> {
    match (&asked.onnx, &asked.op) {
        (Some(file), _) => of_onnx(asked, file),
        (None, Some(op)) => of_op(asked, op),
        (None, None) => of_python(asked),
    }
}

fn of_python(asked: &NewModelArguments) -> Result<String, String> {
    let folder = NewFolder::make(&asked.target, &asked.name)?;
    folder.write("1/model.py", &PYTHON_MODEL.replace("NAME", &asked.name))?;
    let files = ["1/model.py  a function: its hints say what it takes and gives"];
    let config = written(PYTHON_SIGNATURE, &asked.name)?;
    Ok(finish(folder, &files, asked, &config))
}

fn of_op(asked: &NewModelArguments, op: &str) -> Result<String, String> {
    let text = ops::config(op)?;
    let config = written(&text, &asked.name)?;
    let folder = NewFolder::make(&asked.target, &asked.name)?;
    folder.write("config.pbtxt", &text)?;
    // Git keeps no empty folders.
    folder.write("1/.gitkeep", "")?;
    let files = ["config.pbtxt  what it takes and gives, and its op", "1/            its version"];
    Ok(finish(folder, &files, asked, &config))
}

fn of_onnx(asked: &NewModelArguments, file: &Path) -> Result<String, String> {
    if !file.is_file() {
        return Err(format!("--onnx {}: there is no such file", file.display()));
    }
    let folder = NewFolder::make(&asked.target, &asked.name)?;
    let copy = folder.place("1/model.onnx")?;
    fs::copy(file, &copy).map_err(|error| told(file, &error))?;
    let config = completed(&asked.target, &asked.name).map_err(|error| {
        format!(
            "--onnx {}: {error}\nnothing was made. (A model whose weights lie in files beside it is \
             a folder: copy it whole to {}, which needs no config)",
            file.display(),
            asked.target.model_repository.join(&asked.name).join("1").display()
        )
    })?;
    folder.write("config.pbtxt", &onnx_config(&config))?;
    let files = ["1/model.onnx  the network", "config.pbtxt  what it takes and gives, as it says"];
    Ok(finish(folder, &files, asked, &config))
}

/// The config as the file says; the folder holds nothing else yet.
fn completed(target: &NewTarget, name: &str) -> Result<ModelConfig, String> {
    let settings = signature::settings(target);
    let (folders, _) = scan::folders(&settings.repositories);
    let read = |settings: &Settings| -> Result<ModelConfig, String> {
        let name: Arc<str> = name.into();
        let definition = definition::read(settings, &folders, &name, &Overrides::default());
        let definition = definition.map_err(|failure| failure.reason())?;
        finished_config(settings, &definition, 1).map_err(|error| error.to_string())
    };
    let config = read(&settings);
    settings.backends.wait_for_workers(Instant::now());
    config
}

fn onnx_config(config: &ModelConfig) -> String {
    let step = signature::step(config, true);
    let batching = match config.max_batch_size {
        0 => "# It takes no batches: dims are whole shapes.\n".to_owned(),
        rows => format!(
            "# Rows of one execution at most. dims are without the batch's own dimension.\n\
             max_batch_size: {rows}\n"
        ),
    };
    let delay = match config.max_batch_size {
        0 => "",
        _ => {
            "# Requests that wait run together; with a delay they wait for each other:\n\
             # dynamic_batching { max_queue_delay_microseconds: 2000 }\ndynamic_batching { }\n"
        }
    };
    format!(
        "# Read off model.onnx, so it may also be left out: -1 is any size.\nbackend: \
         \"onnxruntime\"\n{batching}{}{}{delay}",
        config_text::tensors("input", &step.inputs),
        config_text::tensors("output", &step.outputs)
    )
}

/// A config that is written here, as it will be read.
fn written(text: &str, name: &str) -> Result<ModelConfig, String> {
    let whole = |problems: Vec<config::Problem>| config::join_messages(&problems);
    let mut draft = config::read_text(text, "config.pbtxt").map_err(whole)?;
    draft.complete_from_directory(name, &[]).map_err(whole)?;
    draft.finish(&config::ServerFeatures::default()).map_err(whole)
}

fn finish(
    folder: NewFolder,
    files: &[&str],
    asked: &NewModelArguments,
    config: &ModelConfig,
) -> String {
    let inputs: Vec<StepTensor> = signature::step(config, true).inputs;
    let made = format!("made {}\n", folder.path.display());
    let files: String = files.iter().map(|line| format!("  {line}\n")).collect();
    folder.keep();
    let infer = example::infer(&asked.name, &inputs);
    format!("{made}{files}{}", next_steps(&asked.target, &infer))
}
