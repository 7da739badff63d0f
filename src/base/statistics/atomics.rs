//! The atomics of counters: those of the standard library, in whose place a test puts loom's.

pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(super) use parking_lot::Mutex;
