//! Copies large tensors into shared memory.

use crate::python::{process::launch_spec::LaunchSpec, protocol::encode};
use troupe_base::{request::Context, tensor::Tensor};

/// Larger tensors, in bytes, are copied on another thread.
pub(crate) const MAX_COPY_HERE: usize = 1 << 20;

/// Is it too large to be copied on this thread?
pub(crate) fn needs_copy(tensor: &Tensor) -> bool {
    MAX_COPY_HERE < tensor.data().len() && tensor.segment().is_none()
}

/// Moves large ones of a request into segments.
pub(crate) fn copy<'a>(
    tensors: impl Iterator<Item = &'a mut Tensor>,
    context: &Context,
    spec: &LaunchSpec,
) {
    for tensor in tensors {
        // Without memory the tensor stays as it is and travels in the frame.
        if needs_copy(tensor)
            && let Ok(moved) = encode::into_segment(tensor, &spec.pool, context)
        {
            spec.copied.to_worker(moved.data().len());
            *tensor = moved;
        }
    }
}
