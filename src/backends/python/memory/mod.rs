//! Shared memory of workers: segments both sides map, the descriptors that show them, their sizes.

pub(super) mod fd_passing;
pub(super) mod segments;
pub(super) mod settings;
