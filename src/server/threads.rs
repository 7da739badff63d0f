//! The threads of a server that serve connections. They end with its actix system.

use std::sync::Arc;

use actix_rt::Arbiter;
use tokio::runtime::Builder;

use troupe_engine::{engines::Engines, rate_limiter::RateLimiter};
use troupe_gateway::connections::ServingThreads;

/// Threads for work that blocks, such as the decoding of large bodies, of all engine threads
/// together.
const MAX_BLOCKING_THREADS: usize = 512;

/// So many engine threads, whose models share this limit, and one that accepts their connections.
pub(super) fn of_engine(count: usize, limiter: Option<Arc<RateLimiter>>) -> ServingThreads {
    let arbiter = |_| {
        let runtime = move || {
            let mut builder = Builder::new_current_thread();
            builder.max_blocking_threads((MAX_BLOCKING_THREADS / count).max(1)).enable_all();
            builder.build().expect("a server that lacks descriptors at its start cannot go on")
        };
        Arbiter::with_tokio_rt(runtime).handle()
    };
    let mut engines = Engines::new((0..count).map(arbiter).collect());
    if let Some(limiter) = limiter {
        engines = engines.limited(limiter);
    }
    ServingThreads { engines, acceptor: Arbiter::new().handle() }
}

/// One that serves and accepts: it answers while engine threads are busy.
pub(super) fn of_metrics() -> ServingThreads {
    let acceptor = Arbiter::new().handle();
    ServingThreads { engines: Engines::new(vec![acceptor.clone()]), acceptor }
}
