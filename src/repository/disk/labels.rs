//! Reads the files of labels that the outputs of a model name.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::scan;
use troupe_base::{
    config::{ModelConfig, Output},
    error::{Error, Result},
    model::{ClassLabels, OutputLabels},
};

/// Larger files are refused unread.
const MAX_LABEL_FILE_BYTES: u64 = 16 << 20;

/// The labels of every output, a file that several outputs name read once. Blocks.
pub(crate) fn read(model_dir: &Path, config: &ModelConfig) -> Result<OutputLabels> {
    let mut labels = OutputLabels::new();
    for (index, output) in config.outputs.iter().enumerate() {
        let earlier = config.outputs[..index].iter();
        let same = earlier
            .zip(&labels)
            .find(|(earlier, _)| earlier.label_filename == output.label_filename);
        let found = match same {
            Some((_, found)) => found.clone(),
            None => read_one(model_dir, config, output)?,
        };
        labels.push(found);
    }
    Ok(labels)
}

/// The labels of one output, if it names a file. Blocks.
pub(crate) fn read_one(
    model_dir: &Path,
    config: &ModelConfig,
    output: &Output,
) -> Result<Option<Arc<ClassLabels>>> {
    if output.label_filename.is_empty() {
        return Ok(None);
    }
    let path = model_dir.join(&output.label_filename);
    let target = inside(model_dir, &path).map_err(|error| cannot_open(&path, &error))?;
    let Some(target) = target else {
        return Err(Error::unsupported(format!(
            "label file path '{}' for output '{}' in model '{}' is outside model directory",
            output.label_filename, output.name, config.name
        )));
    };
    Ok(Some(Arc::new(ClassLabels::new(scan::read_bytes(&target, MAX_LABEL_FILE_BYTES)?))))
}

/// Where the path leads, links resolved; `None` if that is not in the folder.
fn inside(folder: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let (folder, path) = (fs::canonicalize(folder)?, fs::canonicalize(path)?);
    Ok(path.starts_with(folder).then_some(path))
}

fn cannot_open(path: &Path, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "No such file or directory".to_owned(),
        _ => error.to_string(),
    };
    let text = format!("failed to open text file for read {}: {why}", path.display());
    Error::internal(text)
}
