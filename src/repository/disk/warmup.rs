//! Reads the files of warm-up samples.

use std::path::Path;

use bytes::Bytes;

use super::raw_file;
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
    let bytes = raw_file::read_first(folder, file, size, "warmup")?;
    match size {
        ReadLimit::Exactly(wanted) if bytes.len() < wanted => Err(format!(
            "warmup setting expects {wanted} bytes, but the data provided from {file} only has {} \
             bytes",
            bytes.len()
        )),
        _ => Ok(bytes),
    }
}
