//! Tensors from and to regions: checked before anything is read, then copied once, to where the
//! model will find them.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    registry::{self, SharedMemory},
    slice::{RegionRange, RegionSlice},
};
use crate::{
    request_limits::MIN_SHARED_BYTES,
    settings::Settings,
    size_error::{InputContext, explain, size_mismatch},
};
use troupe_base::{
    budget::{Charge, Kind},
    error::{Error, Result},
    model::Model,
    tensor::{DataType, Lease, Owner, Shape, Tensor, element_count},
};

/// The regions that the tensors of one request may lie in.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegionAccess {
    /// `None`: the server does not allow it.
    shared_memory: Option<Arc<SharedMemory>>,
    /// Worker processes will read the inputs.
    is_for_workers: bool,
    /// Whose request it is.
    owner: Owner,
}

impl RegionAccess {
    /// For a request to this model.
    pub(crate) fn new(settings: &Settings, model: &Model) -> RegionAccess {
        let shared_memory = settings.shared_memory.clone();
        RegionAccess { shared_memory, is_for_workers: model.shares_memory, owner: model.owner }
    }

    #[cfg(test)]
    pub(super) fn of(regions: Arc<SharedMemory>, is_for_workers: bool) -> RegionAccess {
        let owner = Owner::default();
        RegionAccess { shared_memory: Some(regions), is_for_workers, owner }
    }

    /// Are there none for sure?
    pub(crate) fn is_none(&self) -> bool {
        self.shared_memory.is_none()
    }

    /// The regions there are, unless none are allowed.
    pub(crate) fn allowed(&self) -> Result<&Arc<SharedMemory>> {
        registry::allowed(self.shared_memory.as_ref())
    }

    /// The part of a region that a client names.
    pub(crate) fn slice(&self, range: &RegionRange<'_>) -> Result<RegionSlice> {
        self.allowed()?.slice(range)
    }

    /// The input that lies in `slice`, in memory that no client can change; the request is charged
    /// for it.
    pub(crate) fn read(
        &self,
        slice: &RegionSlice,
        dtype: DataType,
        shape: Shape,
        about: &InputContext<'_>,
        charge: &Charge,
    ) -> Result<Tensor> {
        let size = slice.size();
        if let Some(each) = dtype.size() {
            let expected = element_count(&shape).ok().and_then(|it| it.checked_mul(each));
            match expected {
                Some(expected) if expected == size => (),
                Some(expected) => return Err(size_mismatch(expected, size, about)),
                None => return Err(explain(dtype, &shape, &[], about)),
            }
        }
        charge.add(Kind::Tensors, size)?;
        let wrong = |data: &[u8]| explain(dtype, &shape, data, about);
        if self.is_for_workers && MIN_SHARED_BYTES <= size {
            let mut segment = slice.segments().take(size, self.owner)?;
            slice.read_into(&mut segment.bytes_mut()[..size])?;
            let lease = segment.freeze();
            let tensor = Tensor::in_segment(dtype, shape.clone(), &lease, 0..size);
            return match tensor {
                Ok(tensor) => Ok(tensor.of_counted()),
                Err(_) => Err(wrong(&Lease::bytes(&lease, 0..size)?)),
            };
        }
        let data = Bytes::from(slice.read()?);
        let tensor = Tensor::new(dtype, shape.clone(), data.clone());
        tensor.map(Tensor::of_counted).map_err(|_| wrong(&data))
    }
}

/// Writes an output to where the client wants it.
pub(crate) fn write(output: &str, tensor: &Tensor, slice: &RegionSlice) -> Result<()> {
    let (room, size) = (slice.size(), tensor.data().len());
    if room < size {
        return Err(Error::internal(format!(
            "shared memory size specified with the request for output '{output}' ({room} bytes) \
             should be at least {size} bytes to hold the results"
        )));
    }
    slice.write(tensor.data())
}
