//! What only a batcher of sequences has: which instances it knows, and the model before a reload.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::instance::{InstanceGeneration, InstancePool};
use troupe_base::model::Model;

/// What only a batcher of sequences has.
pub(super) struct StatefulParts {
    /// Which instance of all that it had each slot had last.
    pub(super) generations: Vec<InstanceGeneration>,
    /// Goes on with the sequences that it has begun.
    pub(super) predecessor: Option<Arc<Model>>,
    pub(super) sequences: Arc<SequenceCount>,
}

/// How much of sequences there is, for whoever replaces the model.
#[derive(Default)]
pub(super) struct SequenceCount {
    /// Of the model itself.
    pub(super) live: AtomicUsize,
    /// The model that goes on for its predecessors, and those.
    pub(super) predecessors: AtomicUsize,
}

impl StatefulParts {
    pub(super) fn new(pool: &InstancePool, sequences: Arc<SequenceCount>) -> StatefulParts {
        let generations = pool.generations().collect();
        StatefulParts { generations, predecessor: None, sequences }
    }
}

impl SequenceCount {
    /// How many sequences there are, those of predecessors among them.
    pub(super) fn all(&self) -> usize {
        self.live.load(Ordering::Relaxed) + self.predecessors.load(Ordering::Relaxed)
    }
}
