//! What all models of a server share of its response cache: the answers, the keys, the counters.

use tokio::runtime::Handle;

use super::{counters::CacheCounters, key::KeyHasher, local::LocalStore, redis::RedisStore};

/// Shared by the models whose answers are kept.
pub(super) struct SharedCache {
    pub(super) store: Store,
    pub(super) hasher: KeyHasher,
    pub(super) counters: CacheCounters,
    /// Of the server's own thread: its pool runs what would keep an engine thread for long.
    pub(super) runtime: Handle,
}

/// Where answers are kept.
pub(super) enum Store {
    Local(LocalStore),
    Redis(RedisStore),
}

impl SharedCache {
    /// The runtime of the thread that asks, so that what waits for a Redis is spread like requests
    /// are; of a thread that has none, the server's own.
    pub(super) fn runtime_here(&self) -> Handle {
        Handle::try_current().unwrap_or_else(|_| self.runtime.clone())
    }

    /// Do other servers see what is kept?
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.store, Store::Redis(_))
    }
}
