//! The shared memory extensions: register, status and unregister, of the system's memory and
//! CUDA's.

use std::sync::Arc;

use crate::{
    ServerState,
    shared_memory::{self, SharedMemory, cuda},
};
use troupe_base::error::Result;
use troupe_proto::inference::{system_shared_memory_status_response::RegionStatus, *};

fn regions(state: &ServerState) -> Result<&Arc<SharedMemory>> {
    shared_memory::allowed(state.settings.shared_memory.as_ref())
}

/// The region of a name, or all.
pub(super) fn status(
    state: &ServerState,
    request: &SystemSharedMemoryStatusRequest,
) -> Result<SystemSharedMemoryStatusResponse> {
    let found = shared_memory::status(state.settings.shared_memory.as_ref(), &request.name)?;
    let regions = found.iter().map(|it| {
        let status = RegionStatus {
            name: it.name.clone(),
            key: it.key.clone(),
            offset: it.offset,
            byte_size: it.byte_size,
        };
        (it.name.clone(), status)
    });
    Ok(SystemSharedMemoryStatusResponse { regions: regions.collect() })
}

/// Gives a part of an object a name.
pub(super) fn register(
    state: &ServerState,
    request: &SystemSharedMemoryRegisterRequest,
) -> Result<SystemSharedMemoryRegisterResponse> {
    let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request;
    regions(state)?.register(name, key, *offset, *byte_size)?;
    Ok(SystemSharedMemoryRegisterResponse {})
}

/// Forgets the region of a name, or all.
pub(super) fn unregister(
    state: &ServerState,
    request: &SystemSharedMemoryUnregisterRequest,
) -> Result<SystemSharedMemoryUnregisterResponse> {
    regions(state)?.unregister(&request.name);
    Ok(SystemSharedMemoryUnregisterResponse {})
}

/// Nothing, unless a region is named.
pub(super) fn cuda_status(
    state: &ServerState,
    request: &CudaSharedMemoryStatusRequest,
) -> Result<CudaSharedMemoryStatusResponse> {
    cuda::status(state.settings.shared_memory.as_ref(), &request.name)?;
    Ok(CudaSharedMemoryStatusResponse::default())
}

/// Refuses, once the request itself is right.
pub(super) fn cuda_register(
    state: &ServerState,
    request: &CudaSharedMemoryRegisterRequest,
) -> Result<CudaSharedMemoryRegisterResponse> {
    regions(state)?;
    Err(cuda::refuse(&request.name, Some(&request.raw_handle)))
}

/// There is nothing to forget.
pub(super) fn cuda_unregister(state: &ServerState) -> Result<CudaSharedMemoryUnregisterResponse> {
    regions(state)?;
    Ok(CudaSharedMemoryUnregisterResponse {})
}
