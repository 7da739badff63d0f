//! Reads the files of warm-up samples.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

use bytes::Bytes;

use troupe_base::{
    config::{ModelConfig, Problem},
    model::warmup::{self, ReadLimit, WarmupSample},
};

/// In a model's directory; holds raw tensors.
const WARMUP_FOLDER: &str = "warmup";

/// The samples of a model, or every problem they have. Blocks.
pub(crate) fn samples(
    config: &ModelConfig,
    model_dir: &Path,
) -> Result<Vec<WarmupSample>, Vec<Problem>> {
    let folder = model_dir.join(WARMUP_FOLDER);
    warmup::samples(config, &|file, size| read(&folder, file, size))
}

fn read(folder: &Path, file: &str, size: ReadLimit) -> Result<Bytes, String> {
    let path = folder.join(file);
    let failed =
        |what: &dyn std::fmt::Display| format!("failed to read '{}': {what}", path.display());
    let metadata = fs::metadata(&path).map_err(|error| failed(&error))?;
    // Opening a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err(failed(&"not a regular file"));
    }
    let (wanted, found) = match size {
        ReadLimit::Exactly(wanted) => (wanted, metadata.len()),
        ReadLimit::AtMost(limit) if metadata.len() <= limit as u64 => {
            (metadata.len() as usize, metadata.len())
        }
        ReadLimit::AtMost(limit) => return Err(failed(&format_args!("larger than {limit} bytes"))),
    };
    if (wanted as u64) < found {
        let path = path.display();
        tracing::warn!("'{path}' has {found} bytes, of which warmup uses the first {wanted}");
    }
    let mut bytes = Vec::new();
    let opened = File::open(&path).map_err(|error| failed(&error))?;
    let read =
        opened.take(wanted as u64).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    if read < wanted {
        return Err(format!(
            "warmup setting expects {wanted} bytes, but the data provided from {file} only has \
             {read} bytes"
        ));
    }
    Ok(bytes.into())
}
