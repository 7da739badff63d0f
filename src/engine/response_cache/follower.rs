//! Requests that wait for an equal one, and how long: as long as the queue would have let them wait.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::lead::Asker;
use troupe_base::{
    config::{Batching, ModelConfig, PriorityLevels},
    request::{Context, Reply, Request},
};

/// A request that was looked up in vain.
pub(super) struct Follower {
    pub(super) context: Arc<Context>,
    pub(super) request: Request,
    pub(super) asker: Asker,
}

impl Follower {
    /// `lookup` is what its lookup took.
    pub(super) fn new(request: Request, reply: Reply, lookup: Duration) -> Follower {
        let context = request.context.clone();
        let asker = Asker { reply, span: context.span.clone(), lookup };
        Follower { context, request, asker }
    }

    /// When it has waited for too long; `None`: never.
    pub(super) fn expiry(&self, timeout: &FollowerTimeout) -> Option<Instant> {
        timeout.expiry(&self.context, self.asker.reply.since())
    }
}

/// The policies of a model's queue, if one of them names a time.
pub(super) struct FollowerTimeout(Option<PriorityLevels>);

impl FollowerTimeout {
    pub(super) fn of(config: &ModelConfig) -> FollowerTimeout {
        FollowerTimeout(match &config.batching {
            Batching::Dynamic(it) if it.queues.is_timed() => Some(it.queues.clone()),
            _ => None,
        })
    }

    fn expiry(&self, context: &Context, since: Instant) -> Option<Instant> {
        let levels = self.0.as_ref()?;
        let policy = levels.policy_of(levels.level_of(context.priority));
        // One that is delayed goes on waiting.
        policy.expiry(context.timeout_us, since).filter(|_| !policy.delays)
    }
}
