//! What the tests of all gateways share: a server without anything behind it.

use std::{sync::Arc, time::Duration};

use actix_rt::Arbiter;
use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use super::{
    ServerState,
    connections::{ConnectionLimits, Connections, ServingThreads},
    settings::Settings,
};
use troupe_base::{
    budget::ByteBudget,
    error::Result,
    model::Infer,
    request::{Reply, Request},
    tensor::SegmentPool,
};
use troupe_engine::engines::Engines;
use troupe_observability::log::Log;
use troupe_repository::{Catalog, Control, Overrides, Repository};

/// Answers nothing and changes nothing.
pub(super) struct Nobody;

impl Infer for Nobody {
    fn infer(&self, _: Request, _: Reply) {}
}

impl Control for Nobody {
    fn end(&self) {}

    fn load(&self, _: String, _: Overrides) -> BoxFuture<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn unload(&self, _: String, _: bool) -> BoxFuture<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// As without flags, and without a log.
pub(super) fn settings(server_id: &str) -> Settings {
    Settings {
        server_id: server_id.to_owned(),
        max_input_size: 64 << 20,
        strict_readiness: true,
        urls: Arc::default(),
        allow_dashboard: true,
        http_access: Default::default(),
        grpc_access: Default::default(),
        grpc: Default::default(),
        http_forwarding: Default::default(),
        grpc_forwarding: Default::default(),
        connections: Connections::new(ConnectionLimits::of_process(None), &ByteBudget::unlimited()),
        stalled: Duration::from_secs(30),
        budget: ByteBudget::unlimited(),
        segments: SegmentPool::new(0),
        shared_memory: None,
        log: Log::silent(),
        access_log: false,
        tap: None,
    }
}

/// A server of these models that has just begun to start.
pub(super) fn state(server_id: &str, catalog: Catalog, control: Arc<dyn Control>) -> ServerState {
    let catalog = Arc::new(ArcSwap::from_pointee(catalog));
    ServerState {
        repository: Repository { catalog, control },
        settings: settings(server_id),
        lifecycle: Arc::default(),
        tracer: Arc::default(),
    }
}

/// This thread alone serves and accepts.
pub(crate) fn this_thread() -> ServingThreads {
    let acceptor = Arbiter::current();
    let engines = Engines::new(vec![acceptor.clone()]);
    ServingThreads { engines, acceptor, acceptor_runtime: Handle::current() }
}
