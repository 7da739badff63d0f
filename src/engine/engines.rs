//! The threads that serve: each runs gateway workers, step actors, batchers and light instances.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use actix_rt::ArbiterHandle;
use troupe_base::request::deadlock::WaitGraph;

/// What all batchers of one server share: the engine arbiters, given out in turn, and the graph in
/// which deadlocks are found. Clones share them.
#[derive(Clone)]
pub struct Engines {
    arbiters: Arc<[ArbiterHandle]>,
    next: Arc<AtomicUsize>,
    wait_graph: Arc<WaitGraph>,
}

impl Engines {
    /// At least one arbiter is needed.
    pub fn new(arbiters: Vec<ArbiterHandle>) -> Engines {
        assert!(!arbiters.is_empty(), "an engine needs a thread");
        Engines { arbiters: arbiters.into(), next: Arc::default(), wait_graph: Arc::default() }
    }

    /// The next arbiter in turn: for a batcher with its instances, or for an ensemble's steps.
    pub fn pick(&self) -> ArbiterHandle {
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.arbiters.len();
        self.arbiters[index].clone()
    }

    /// Who waits for whom among the models of this server.
    pub fn wait_graph(&self) -> &Arc<WaitGraph> {
        &self.wait_graph
    }

    /// All of them.
    pub fn all(&self) -> &[ArbiterHandle] {
        &self.arbiters
    }
}
