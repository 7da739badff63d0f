//! System shared memory: regions that clients register, and tensors read from and written to them.
//!
//! No memory of a client is ever mapped: the kernel copies the bytes (`pread`, `pwrite`). A client
//! that shrinks or removes its object gets an error, and nobody a SIGBUS; what was read once cannot
//! change any more while a model works on it.

pub(crate) mod cuda;
mod key;
mod region;
mod registry;
mod slice;
mod tensors;

#[cfg(test)]
mod tests;

pub use self::{
    region::Region,
    registry::SharedMemory,
    slice::{RegionRange, RegionSlice},
};
pub(crate) use self::{
    registry::{allowed, status},
    slice::{OFFSET_PARAMETER, REGION_PARAMETER, SIZE_PARAMETER},
    tensors::{RegionAccess, write},
};
