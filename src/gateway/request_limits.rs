//! Limits of a request's lists and of what is believed of its announced length, the same in both
//! protocols.

use troupe_base::{
    error::Result,
    tensor::{OwnedPool, SegmentMut},
};

/// Most entries of one list: inputs, outputs, parameters, dimensions.
pub(crate) const MAX_LIST_ITEMS: usize = 4096;
/// Most of them in all: they take many times more memory than they have bytes.
pub(crate) const MAX_ITEMS: usize = 65_536;
/// New memory for all announced bytes is taken once this part of them has arrived: a sixteenth.
const MIN_ARRIVED_PART: usize = 16;
/// For so few it is taken at once.
pub(crate) const MIN_EARLY_BYTES: usize = 64 << 10;
/// Tensors and bodies from here on are worth a segment that worker processes can map; smaller ones
/// are cheaper to copy.
pub(crate) const MIN_SHARED_BYTES: usize = 64 << 10;

/// Has so much of `length` announced bytes arrived that memory for all of them may be taken?
/// Announcing costs a client nothing.
pub(crate) fn is_early_enough(arrived: usize, length: usize) -> bool {
    length <= MIN_EARLY_BYTES || length / MIN_ARRIVED_PART <= arrived
}

/// A segment of `size` bytes for a body of which `arrived` bytes have come; `None`: not yet. One
/// that is kept for reuse is there already, a new one is made once enough has arrived.
pub(crate) fn segment_for(
    pool: &OwnedPool,
    size: usize,
    arrived: usize,
) -> Option<Result<SegmentMut>> {
    let idle = pool.take_idle(size).map(Ok);
    idle.or_else(|| is_early_enough(arrived, size).then(|| pool.take(size)))
}
