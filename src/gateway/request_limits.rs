//! Limits of a request's lists and of what is believed of its announced length, the same in both
//! protocols.

/// Most entries of one list: inputs, outputs, parameters, dimensions.
pub(crate) const MAX_LIST_ITEMS: usize = 4096;
/// Most of them in all: they take many times more memory than they have bytes.
pub(crate) const MAX_ITEMS: usize = 65_536;
/// Memory for all announced bytes is taken once this part of them has arrived: a sixteenth.
pub(crate) const MIN_ARRIVED_PART: usize = 16;
/// Tensors and bodies from here on are worth a segment that worker processes can map; smaller ones
/// are cheaper to copy.
pub(crate) const MIN_SHARED_BYTES: usize = 64 << 10;
