//! The shared memory extension for CUDA, of which there is none: what is asked is checked all the
//! same.

use std::sync::Arc;

use super::registry::{SharedMemory, unknown};
use troupe_base::error::{Error, Result};

/// Bytes of a `cudaIpcMemHandle_t`.
const HANDLE_BYTES: usize = 64;

/// There is no region, whatever its name; asking for all is no mistake.
pub(crate) fn status(system: Option<&Arc<SharedMemory>>, name: &str) -> Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    if system.is_some_and(|it| it.status(name).is_ok()) {
        return Err(Error::not_found(format!(
            "The region named '{name}' is registered as system shared memory, not CUDA shared \
             memory"
        )));
    }
    Err(unknown("cuda ", name))
}

/// The refusal of a region with this handle; `None` if it could not be decoded.
pub(crate) fn refuse(name: &str, handle: Option<&[u8]>) -> Error {
    Error::invalid(match (name, handle) {
        ("", _) => "'region name' is necessary to register cuda shared memory region".to_owned(),
        (_, Some(handle)) if handle.len() == HANDLE_BYTES => {
            format!("failed to register CUDA shared memory region: '{name}', GPUs not supported")
        }
        _ => "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t".to_owned(),
    })
}
