//! The threads of a server that serve connections. They end with its actix system.

use std::sync::Arc;

use actix_rt::{Arbiter, ArbiterHandle};
use tokio::runtime::{Builder, Handle};

use super::memory_limit;
use troupe_engine::{engines::Engines, rate_limiter::RateLimiter};
use troupe_gateway::connections::ServingThreads;

/// Threads for work that blocks, such as the decoding of large bodies, of all engine threads
/// together.
const MAX_BLOCKING_THREADS: usize = 512;
/// Why there is no runtime without them.
const FEW_DESCRIPTORS: &str = "a server that lacks descriptors at its start cannot go on";

/// So many engine threads, whose models share this limit, and one that accepts their connections.
pub(super) fn of_engine(count: usize, limiter: Option<Arc<RateLimiter>>) -> ServingThreads {
    let arbiter = |_| {
        let runtime = move || {
            let mut builder = Builder::new_current_thread();
            builder.max_blocking_threads((MAX_BLOCKING_THREADS / count).max(1)).enable_all();
            builder.build().expect(FEW_DESCRIPTORS)
        };
        Arbiter::with_tokio_rt(runtime).handle()
    };
    let mut engines = Engines::new((0..count).map(arbiter).collect()).measuring(memory_limit::left);
    if let Some(limiter) = limiter {
        engines = engines.limited(limiter);
    }
    let (acceptor, acceptor_runtime) = acceptor();
    ServingThreads { engines, acceptor, acceptor_runtime }
}

/// One that serves and accepts: it answers while engine threads are busy.
pub(super) fn of_metrics() -> ServingThreads {
    let (acceptor, acceptor_runtime) = acceptor();
    let engines = Engines::new(vec![acceptor.clone()]);
    ServingThreads { engines, acceptor, acceptor_runtime }
}

fn acceptor() -> (ArbiterHandle, Handle) {
    let runtime = Builder::new_current_thread().enable_all().build().expect(FEW_DESCRIPTORS);
    let handle = runtime.handle().clone();
    (Arbiter::with_tokio_rt(move || runtime).handle(), handle)
}
