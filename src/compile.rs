//! `troupe compile`: prints the config.pbtxt of the ensemble that a pipeline in Python is.

use std::path::{Path, PathBuf};

use troupe_backends::gpus;
use troupe_base::config;
use troupe_repository as repository;

/// Where the pipeline of a model's folder is, if it is one.
pub(crate) fn file_of(folder: &Path) -> PathBuf {
    folder.join(repository::PIPELINE_FILE)
}

/// The config.pbtxt of a pipeline, given its file or its folder; the models it calls are in
/// `repository`, or in the folder that its own is in.
pub(crate) fn compile(
    pipeline: &Path,
    repository: Option<PathBuf>,
    backend_config: Vec<((String, String), String)>,
) -> Result<String, String> {
    let file = if pipeline.is_dir() { file_of(pipeline) } else { pipeline.to_owned() };
    let file = std::path::absolute(&file).map_err(|error| error.to_string())?;
    if !file.is_file() {
        return Err(format!("{}: there is no such file", file.display()));
    }
    let beside = || file.ancestors().nth(2).unwrap_or(Path::new("/")).to_owned();
    let mut settings = repository::Settings {
        repositories: vec![repository.unwrap_or_else(beside)],
        config: config::ServerFeatures { gpus: gpus::usable },
        ..repository::Settings::default()
    };
    settings.backend.provision = true;
    settings.backend.options = backend_config.into_iter().collect();
    repository::compile(&settings, &file)
}
