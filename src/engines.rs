//! The threads that serve: each runs gateway workers, step actors, batchers and light instances.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use actix_rt::ArbiterHandle;

/// Handles of the engine arbiters, given out in turn; clones share them.
///
/// The HTTP gateway's workers are the engines, and the gateway needs the repository, which needs
/// the engines: so the handles are set once, after the gateway has started.
#[derive(Clone, Default)]
pub struct Engines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    arbiters: OnceLock<Vec<ArbiterHandle>>,
    next: AtomicUsize,
}

impl Engines {
    /// At least one arbiter is needed.
    pub fn new(arbiters: Vec<ArbiterHandle>) -> Engines {
        let engines = Engines::default();
        engines.set(arbiters);
        engines
    }

    /// Called once, before anything is loaded.
    pub fn set(&self, arbiters: Vec<ArbiterHandle>) {
        assert!(!arbiters.is_empty(), "an engine needs a thread");
        let is_first = self.0.arbiters.set(arbiters).is_ok();
        assert!(is_first, "the engines are set once");
    }

    /// The next arbiter in turn: for a batcher with its instances, or for an ensemble's steps.
    pub fn pick(&self) -> ArbiterHandle {
        let all = self.all();
        all[self.0.next.fetch_add(1, Ordering::Relaxed) % all.len()].clone()
    }

    /// All of them.
    pub fn all(&self) -> &[ArbiterHandle] {
        self.0.arbiters.get().expect("the engines are set before anything is loaded")
    }
}
