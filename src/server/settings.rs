//! Settings of the repository and of the gateways, out of what the command line says.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{cpu_limit, memory_limit};
use troupe_backends::gpus;
use troupe_base::{
    backend,
    budget::{Budget, ByteBudget},
    config,
    tensor::SegmentPool,
};
use troupe_engine::rate_limiter::{RateLimiter, ResourceLimit};
use troupe_gateway::{
    access::{Access, AllowedOrigins, PageToken, Restrictions},
    connections::{ConnectionLimits, Connections},
    service_urls::ServiceUrls,
    settings::{GrpcTuning, Settings},
    shared_memory::SharedMemory,
};
use troupe_observability::log::Log;
use troupe_options::{GrpcArguments, RateLimit, RateLimitResource, Serve};
use troupe_repository as repository;

/// Where models are looked for, unless the command line says.
const DEFAULT_REPOSITORY: &str = "model_repository";

/// A line in the log about each flag and each backend setting that nothing looks at, and about what a
/// flag leaves open that seems to close it.
pub(super) fn warn_without_effect(options: &Serve) {
    let flags = [options.without_effect.given(), options.grpc.without_effect()].concat();
    for flag in flags {
        tracing::warn!("{flag} has no effect here");
    }
    if options.cache.response_cache_byte_size.is_some() {
        let instead = "use --cache-config=local,size=BYTES instead";
        tracing::warn!("--response-cache-byte-size is deprecated: {instead}");
    }
    for flag in options.tls.without_effect() {
        tracing::warn!("{flag} has no effect: its port is not encrypted");
    }
    let listeners = &options.listeners;
    if listeners.allow_http && listeners.allow_grpc {
        listeners.restricted.left_open().iter().for_each(|text| tracing::warn!("{text}"));
    }
    for (backend, key) in options.backend_settings().into_keys() {
        if !troupe_backends::SETTINGS.contains(&(&*backend, &*key)) {
            let name = if backend.is_empty() { key } else { format!("{backend},{key}") };
            tracing::warn!("--backend-config={name} has no effect here");
        }
    }
}

/// Folders of models.
pub(super) fn repositories(options: &Serve) -> Vec<PathBuf> {
    if options.model_repository.is_empty() {
        return vec![DEFAULT_REPOSITORY.into()];
    }
    options.model_repository.clone()
}

/// For the repository; without what the server itself makes.
pub(super) fn of_models(options: &Serve) -> repository::Settings {
    repository::Settings {
        repositories: repositories(options),
        mode: options.model_control_mode,
        load_models: options.load_model.clone(),
        watch: options.watch,
        auto_complete: options.auto_complete(),
        threads: options.model_load_thread_count as usize,
        retry_count: options.model_load_retry_count,
        backend: backend::Settings {
            options: options.backend_settings(),
            provision: options.provision,
            spin: cpu_limit::spin(options.spin),
            ..backend::Settings::default()
        },
        config: config::ServerFeatures { gpus: gpus::usable },
        ..repository::Settings::default()
    }
}

/// What executions share, if they do.
pub(super) fn rate_limiter(options: &Serve) -> Option<Arc<RateLimiter>> {
    let limits = &options.rate_limits;
    let limit = |it: &RateLimitResource| ResourceLimit {
        name: (*it.name).into(),
        count: it.count.into(),
        device: it.device,
    };
    let resources = || limits.rate_limit_resource.iter().map(limit).collect();
    (limits.rate_limit == RateLimit::ExecutionCount).then(|| RateLimiter::new(resources()))
}

/// The table of connections of all gateways.
pub(super) fn connections(options: &Serve, budget: &Arc<ByteBudget>) -> Arc<Connections> {
    let most = options.listeners.max_connections.map(|it| it as usize);
    Connections::new(ConnectionLimits::of_process(most), budget)
}

/// What requests in flight may hold together.
pub(super) fn budget(options: &Serve) -> Arc<ByteBudget> {
    let asked = options.memory.max_inflight_bytes;
    ByteBudget::new(asked.unwrap_or_else(memory_limit::default_inflight_bytes))
}

/// What gateways share with others.
pub(super) struct Shared {
    pub(super) budget: Arc<ByteBudget>,
    pub(super) segments: Arc<SegmentPool>,
    pub(super) connections: Arc<Connections>,
    pub(super) urls: Arc<ServiceUrls>,
    /// Of HTTP, and of gRPC.
    pub(super) access: [Arc<Access>; 2],
}

/// How long a client may stand still in the middle of something; zero: for ever.
pub(super) fn stalled(options: &Serve) -> Duration {
    Duration::from_secs(options.listeners.stalled_connection_secs.into())
}

/// Who may ask for what, over HTTP and over gRPC.
pub(super) fn access(options: &Serve) -> [Arc<Access>; 2] {
    let token = PageToken::default();
    let listeners = &options.listeners;
    let restricted = &listeners.restricted;
    let access = |groups, address, origins| {
        let refuses_files = !listeners.takes_files(address);
        let restrictions = Restrictions::new(groups);
        let origins = AllowedOrigins::new(origins);
        Arc::new(Access { restrictions, token: token.clone(), refuses_files, origins })
    };
    [
        access(
            &restricted.http_restricted_api,
            &listeners.http_address,
            &listeners.cors.http_allow_origin,
        ),
        access(&restricted.grpc_restricted_protocol, &listeners.grpc_address, &[]),
    ]
}

fn tuning(options: &GrpcArguments) -> GrpcTuning {
    let (max_age, max_age_grace) = options.max_age();
    GrpcTuning {
        keep_alive: Duration::from_millis(options.grpc_keepalive_time.into()),
        keep_alive_timeout: Duration::from_millis(options.grpc_keepalive_timeout.into()),
        max_age,
        max_age_grace,
        compression: options.grpc_infer_response_compression_level,
    }
}

/// A line in the log if requests may hold more than there is.
fn warn_of_missing_memory(budget: &ByteBudget) {
    let available = memory_limit::available_bytes();
    if available < budget.cap() as u64 {
        tracing::warn!(
            "--max-inflight-bytes is {}, but this process may use {available} bytes of memory: it \
             may be killed before requests are refused",
            budget.cap()
        );
    }
}

/// A line in the log about requests that are allowed by their size and never fit into memory.
fn warn_of_refused_sizes(max_input_size: usize, budget: &ByteBudget) {
    let most = budget.model_share().cap();
    if most < max_input_size {
        tracing::warn!(
            "--http-max-input-size is {max_input_size}, but no request of more than {most} bytes \
             fits into its share of --max-inflight-bytes, which is {}",
            budget.cap()
        );
    }
}

/// For the gateways.
pub(super) fn of_gateways(options: &Serve, log: &Log, shared: Shared) -> Settings {
    let forwarding = &options.listeners.forwarding;
    let Shared { budget, segments, connections, urls, access } = shared;
    let [http_access, grpc_access] = access;
    let max_input_size = options.listeners.http_max_input_size;
    let max_input_size =
        max_input_size.unwrap_or_else(|| memory_limit::default_input_bytes(budget.cap()));
    warn_of_missing_memory(&budget);
    warn_of_refused_sizes(max_input_size, &budget);
    let allows_regions = options.shared_memory.allow_client_shm;
    Settings {
        http_access,
        grpc_access,
        grpc: tuning(&options.grpc),
        http_forwarding: forwarding.http_header_forward_pattern.clone().unwrap_or_default(),
        grpc_forwarding: forwarding.grpc_header_forward_pattern.clone().unwrap_or_default(),
        connections,
        stalled: stalled(options),
        shared_memory: allows_regions.then(|| SharedMemory::new(segments.clone())),
        server_id: options.id.clone(),
        urls,
        max_input_size,
        budget,
        strict_readiness: options.strict_readiness,
        allow_dashboard: options.dashboard.allow_dashboard,
        segments,
        log: log.clone(),
        access_log: options.log.access_log,
        tap: options.tap.allow_tap.then(|| Budget::new(options.tap.tap_max_bytes)),
    }
}
