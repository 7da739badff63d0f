//! Reads the first bytes of a file that holds a raw tensor.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

use bytes::Bytes;

use troupe_base::model::warmup::ReadLimit;

/// So many bytes of a file, or as many as it has; `user` reads it, for the log. Blocks.
pub(super) fn read_first(
    folder: &Path,
    file: &str,
    size: ReadLimit,
    user: &str,
) -> Result<Bytes, String> {
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
        tracing::warn!("'{path}' has {found} bytes, of which {user} uses the first {wanted}");
    }
    let mut bytes = Vec::new();
    let opened = File::open(&path).map_err(|error| failed(&error))?;
    opened.take(wanted as u64).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    Ok(bytes.into())
}
