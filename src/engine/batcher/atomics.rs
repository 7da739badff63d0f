//! The atomics of batchers: those of the standard library, in whose place a test puts loom's.

pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
