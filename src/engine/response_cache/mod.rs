//! The response cache: keeps answers of models whose config says so, in memory or in a Redis, and
//! executes of equal requests one.
//!
//! [`ResponseCache`] is what a server has one of; it puts a `CachedModel` in front of a model.
//! What an answer depends on is in its `key`. `flights` are requests that equal ones wait for.

mod answer;
mod breaker;
mod cached_model;
mod counters;
mod flights;
mod follower;
mod key;
mod lead;
mod local;
mod redis;
mod redis_value;
mod store;
#[cfg(test)]
mod tests;
mod warning;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::runtime::Handle;

use self::{
    cached_model::{CachedModel, CachedModelSetup},
    counters::CacheCounters,
    follower::FollowerTimeout,
    key::{KeyHasher, KeyScope},
    local::{LocalStore, ModelCap},
    redis::RedisStore,
    store::{SharedCache, Store},
};
use troupe_base::{
    config::{BackendTraits, ModelConfig},
    error::Result,
    metrics::{CacheUsage, HeldAnswers},
    model::{Infer, Model, ModelParts},
    trace,
};
use troupe_options::CacheConfig;

/// The response cache of a server.
pub struct ResponseCache {
    shared: Arc<SharedCache>,
    /// Numbers the models that were loaded.
    generations: AtomicU64,
}

impl ResponseCache {
    /// Opens it, on the runtime that it is called on; a Redis that does not answer is an error.
    pub async fn open(config: &CacheConfig) -> Result<Arc<ResponseCache>> {
        let (store, hasher) = match config {
            CacheConfig::Local { size } => {
                (Store::Local(LocalStore::new(*size)?), KeyHasher::keyed()?)
            }
            CacheConfig::Redis(config) => {
                (Store::Redis(RedisStore::open(config).await?), KeyHasher::Shared)
            }
        };
        let (counters, runtime) = (CacheCounters::new(), Handle::current());
        let shared = Arc::new(SharedCache { store, hasher, counters, runtime });
        Ok(Arc::new(ResponseCache { shared, generations: AtomicU64::new(0) }))
    }

    /// Do other servers see what is kept? Then a model needs a fingerprint.
    pub fn is_shared(&self) -> bool {
        self.shared.is_shared()
    }

    /// `inner`, its answers kept as the config says; what its config does not have kept is as before.
    ///
    /// `fingerprint` says what was loaded, where the cache is shared; in the server's own memory
    /// every load is another model.
    pub fn in_front_of(
        &self,
        parts: &ModelParts,
        fingerprint: Option<u128>,
        inner: Arc<dyn Infer>,
    ) -> Arc<dyn Infer> {
        let Some(policy) = parts.config.response_cache else { return inner };
        let cap = policy.max_bytes.map(ModelCap::new);
        if cap.is_some() && self.is_shared() {
            let name = &parts.config.name;
            let text = "has no effect: the cache is a Redis, which has a limit of its own";
            tracing::warn!("`response_cache.max_byte_size` of '{name}' {text}");
        }
        let own = || match self.is_shared() {
            // No other server has it.
            true => u128::from(trace::random()) << 64 | u128::from(trace::random()),
            false => u128::from(self.generations.fetch_add(1, Relaxed)),
        };
        let scope = KeyScope {
            model: parts.config.name.clone(),
            version: parts.version,
            generation: fingerprint.filter(|_| self.is_shared()).unwrap_or_else(own),
            inputs: parts.config.inputs.iter().map(|it| it.name.clone()).collect(),
            outputs: parts.config.outputs.len(),
            reads_parameters: reads_parameters(&parts.config, &parts.steps),
        };
        Arc::new(CachedModel::new(CachedModelSetup {
            inner,
            cache: self.shared.clone(),
            scope,
            stats: parts.stats.clone(),
            ttl: policy.ttl,
            cap,
            timeout: FollowerTimeout::of(&parts.config),
        }))
    }

    /// What it has done, and what it holds.
    pub fn usage(&self) -> CacheUsage {
        let held = match &self.shared.store {
            Store::Redis(_) => None,
            Store::Local(local) => Some(HeldAnswers {
                entries: local.entries(),
                bytes: local.bytes(),
                size: local.size(),
                evictions: local.evictions(),
            }),
        };
        self.shared.counters.usage(held)
    }
}

impl std::fmt::Debug for ResponseCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseCache")
    }
}

/// Does its code, or that of a model it runs, see the parameters of a request?
fn reads_parameters(config: &ModelConfig, steps: &[Arc<Model>]) -> bool {
    BackendTraits::of(&config.backend).reads_parameters
        || steps.iter().any(|it| reads_parameters(&it.config, &it.steps))
}
