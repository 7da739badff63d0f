//! Knows which file, platform and backend belong together.

use super::problem::did_you_mean;
use troupe_proto::inference;

/// The platform of a model that answers by running others; it has no backend.
pub(super) const ENSEMBLE: &str = "ensemble";

/// A backend whose models are known by their file.
struct KnownFile {
    backend: &'static str,
    /// Empty: the backend has no platform of its own.
    platform: &'static str,
    file: &'static str,
}

/// A file earlier in the table decides when a folder has several.
const KNOWN: &[KnownFile] = &[
    KnownFile { backend: "onnxruntime", platform: "onnxruntime_onnx", file: "model.onnx" },
    KnownFile { backend: "tensorrt", platform: "tensorrt_plan", file: "model.plan" },
    KnownFile { backend: "pytorch", platform: "pytorch_libtorch", file: "model.pt" },
    KnownFile { backend: "pytorch", platform: "torch_aoti", file: "model.pt2" },
    KnownFile { backend: "openvino", platform: "", file: "model.xml" },
    KnownFile { backend: "python", platform: "", file: "model.py" },
    KnownFile {
        backend: "tensorflow",
        platform: "tensorflow_savedmodel",
        file: "model.savedmodel",
    },
    KnownFile { backend: "tensorflow", platform: "tensorflow_graphdef", file: "model.graphdef" },
];

/// Fills platform, backend and file name from each other and from the files of a version.
///
/// Does nothing for an ensemble; fails with Triton's text when nothing names a backend.
pub(super) fn deduce(config: &mut inference::ModelConfig, files: &[&str]) -> Result<(), String> {
    if is_ensemble(config) {
        return Ok(());
    }
    if config.platform.is_empty() && config.backend.is_empty() {
        match of_files(&config.default_model_filename, files) {
            Some(known) => {
                config.backend = known.backend.into();
                config.platform = known.platform.into();
            }
            None => {
                config.backend = of_name(&config.name).map_err(|text| text + &misnamed(files))?;
            }
        }
    }
    fill(config);
    Ok(())
}

/// Fills what the written part of platform, backend and file name says about the rest.
pub(super) fn fill(config: &mut inference::ModelConfig) {
    if is_ensemble(config) {
        return;
    }
    if config.backend.is_empty()
        && let Some(known) = of_platform(&config.platform)
    {
        config.backend = known.backend.into();
    }
    let written = |known: &&KnownFile| known.backend == config.backend;
    let agrees =
        |known: &&KnownFile| config.platform.is_empty() || config.platform == known.platform;
    let Some(known) = KNOWN.iter().filter(written).find(agrees) else { return };
    if config.platform.is_empty() {
        config.platform = known.platform.into();
    }
    if config.default_model_filename.is_empty() {
        config.default_model_filename = known.file.into();
    }
}

/// The backend that a name which is none probably means.
pub fn meant_backend(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let alias = match &*name {
        "onnx" | "ort" | "onnx_runtime" | "onnxruntime_onnx" => Some("onnxruntime"),
        "py" | "python3" | "python_backend" => Some("python"),
        "torch" | "libtorch" => Some("pytorch"),
        "trt" => Some("tensorrt"),
        _ => None,
    };
    alias.or_else(|| did_you_mean(&name, KNOWN.iter().map(|known| known.backend)))
}

/// What to write in place of a platform that nobody knows, behind a separator.
pub(super) fn instead_of_platform(platform: &str) -> String {
    let platforms = KNOWN.iter().map(|known| known.platform).filter(|it| !it.is_empty());
    match (did_you_mean(platform, platforms.chain([ENSEMBLE])), meant_backend(platform)) {
        (Some(meant), _) => format!(", did you mean `{meant}`?"),
        (None, Some(backend)) => format!(": write `backend: \"{backend}\"` in its place"),
        (None, None) => {
            ": what runs a model is its 'backend'; a platform may be left out".to_owned()
        }
    }
}

/// The backend that runs models of this platform; `None` for a platform nobody knows.
pub(super) fn of_known_platform(platform: &str) -> Option<&'static str> {
    of_platform(platform).map(|known| known.backend)
}

/// The backend decides what its platform is called.
pub(super) fn has_known_platform(backend: &str) -> bool {
    KNOWN.iter().any(|known| known.backend == backend && !known.platform.is_empty())
}

fn is_ensemble(config: &inference::ModelConfig) -> bool {
    use inference::model_config::SchedulingChoice::EnsembleScheduling;
    config.platform == ENSEMBLE || matches!(config.scheduling_choice, Some(EnsembleScheduling(_)))
}

fn of_platform(platform: &str) -> Option<&'static KnownFile> {
    KNOWN.iter().find(|known| !platform.is_empty() && known.platform == platform)
}

/// The configured file decides by its extension, else the files that are there by their names.
fn of_files(configured: &str, files: &[&str]) -> Option<&'static KnownFile> {
    KNOWN.iter().find(|known| match configured {
        "" => files.contains(&known.file),
        _ => ending(configured) == ending(known.file),
    })
}

/// A file that nearly tells the backend: another name with the ending of a known one.
fn misnamed(files: &[&str]) -> String {
    let told = |file: &&str| {
        let expected = usual_file(file)?;
        Some(format!(" The folder of its version has '{file}', expected '{expected}'."))
    };
    files.iter().find_map(told).unwrap_or_default()
}

/// What a model's file with this ending is usually called.
pub fn usual_file(file: &str) -> Option<&'static str> {
    KNOWN.iter().find(|it| ending(it.file) == ending(file)).map(|it| it.file)
}

/// Behind the last dot.
fn ending(file: &str) -> Option<&str> {
    file.rsplit_once('.').map(|(_, ending)| ending)
}

/// The backend in a model name of the form `model.<backend>`.
fn of_name(model: &str) -> Result<String, String> {
    match model.rsplit_once('.') {
        Some((_, backend)) if !backend.is_empty() => Ok(backend.into()),
        _ => Err(format!(
            "Invalid model name: Could not determine backend for model '{model}' with no backend \
             in model configuration. Expected model name of the form 'model.<backend_name>'."
        )),
    }
}
