//! Feeds batches with the states of their sequences, just before they are executed.

use std::sync::Arc;

use super::work::InstanceWork;
use troupe_base::request::{Pending, StateSet};

/// What a model keeps for its sequences, as its instances are given it.
#[derive(Clone)]
pub struct StateFeed {
    set: Arc<StateSet>,
    /// Its executions take joined tensors, so the states of a batch must be alike.
    is_joined: bool,
}

impl StateFeed {
    /// `is_joined`: the inputs of a batch are joined before it is executed.
    pub fn new(set: Arc<StateSet>, is_joined: bool) -> StateFeed {
        StateFeed { set, is_joined }
    }

    /// What is kept.
    pub fn set(&self) -> &Arc<StateSet> {
        &self.set
    }

    /// The same requests with the states of their sequences, and zeros in rows that have none. A
    /// batch becomes several where its states cannot be joined.
    pub(super) fn feed(&self, work: InstanceWork) -> InstanceWork {
        InstanceWork(work.0.into_iter().flat_map(|batch| self.feed_batch(batch)).collect())
    }

    fn feed_batch(&self, mut batch: Vec<Pending>) -> Vec<Vec<Pending>> {
        let mut like = None;
        for pending in &mut batch {
            if let Some(keeper) = pending.reply.state_keeper() {
                keeper.states().feed(&mut pending.request);
                like.get_or_insert_with(|| pending.request.clone());
            }
        }
        let mut zeros = None;
        for pending in batch.iter_mut().filter(|it| it.reply.state_keeper().is_none()) {
            let zeros = zeros.get_or_insert_with(|| self.set.zeros(like.as_ref()));
            self.set.feed_zeros(&mut pending.request, zeros);
        }
        if !self.is_joined || batch.len() < 2 {
            return vec![batch];
        }
        let mut batches: Vec<Vec<Pending>> = Vec::new();
        for pending in batch {
            let mut all = batches.iter_mut();
            match all.find(|it| self.set.are_alike(&it[0].request, &pending.request)) {
                Some(alike) => alike.push(pending),
                None => batches.push(vec![pending]),
            }
        }
        batches
    }
}
