//! What the thread of a server does: opens listeners, loads models, serves, drains or aborts.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
};

use super::{
    allocator, cpu_limit,
    drain::drain,
    ending::Ending,
    listeners::{Addresses, Listeners},
    machine, memory_limit, settings,
    summary::log_summary,
    threads,
};
use troupe_backends::{Backends, python};
use troupe_base::{
    error::{Error, Result},
    metrics::Metrics,
    tensor::SegmentPool,
};
use troupe_engine::response_cache::ResponseCache;
use troupe_gateway::{ServerState, http, lifecycle::Lifecycle};
use troupe_observability::{log::Log, telemetry::Tracer};
use troupe_options::Serve;
use troupe_repository::{self as repository, Summary};

/// How often unused shared memory is looked for.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);
/// Shared memory that was not used for so long is given back.
const IDLE_SEGMENT_AGE: Duration = Duration::from_secs(5);

/// How a server is told to end by its handle. A handle that is dropped means `Abort`, without
/// grace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shutdown {
    /// Refuse new requests, and end once those in flight are answered or the time is over.
    Drain(Duration),
    /// End now; workers have this long.
    Abort(Duration),
}

/// Between the thread of a server and its handle.
pub(super) struct Channels {
    /// The listeners are open, or why not.
    pub(super) started: oneshot::Sender<Result<Running>>,
    /// The first load is through.
    pub(super) loaded: watch::Sender<Option<Arc<Summary>>>,
    /// The last thing the thread says.
    pub(super) ended: watch::Sender<Option<Ending>>,
    pub(super) commands: mpsc::UnboundedReceiver<Shutdown>,
}

/// What the handle holds of a running server.
pub(super) struct Running {
    pub(super) state: ServerState,
    pub(super) addresses: Addresses,
    pub(super) metrics: Metrics,
}

/// A server whose listeners are open.
struct OpenServer {
    running: Running,
    backends: Backends,
    listeners: Listeners,
    first_load: Pin<Box<dyn Future<Output = Summary> + Send>>,
}

/// Runs one server to its end, on the current actix system.
pub(super) async fn serve(options: Serve, log: Log, channels: Channels) {
    let Channels { started, loaded, ended, mut commands } = channels;
    let OpenServer { running, backends, listeners, first_load } = match open(&options, &log).await {
        Ok(opened) => opened,
        Err(error) => {
            // Nobody waits any more when the embedder has given up; then there is nothing to end.
            let _ = started.send(Err(error));
            return;
        }
    };
    let state = running.state.clone();
    // As above: the command that does not come is an abort.
    let _ = started.send(Ok(running));
    let load = async {
        let summary = first_load.await;
        log_summary(&summary, &options, &state.settings);
        // A model that failed leaves the others serving; without a repository there are none.
        let has_repository = settings::repositories(&options).iter().any(|path| path.is_dir());
        state.lifecycle.started(has_repository);
        loaded.send_replace(Some(Arc::new(summary)));
    };
    let command = tokio::select! {
        () = load => commands.recv().await,
        command = commands.recv() => command,
    };
    let ending = match command {
        Some(Shutdown::Drain(grace)) => tokio::select! {
            ending = drain(&state, backends.clone(), listeners, grace) => ending,
            workers_grace = abort_command(&mut commands) => abort(&state, backends, workers_grace).await,
        },
        Some(Shutdown::Abort(workers_grace)) => abort(&state, backends, workers_grace).await,
        None => abort(&state, backends, Duration::ZERO).await,
    };
    ended.send_replace(Some(ending));
}

async fn abort_command(commands: &mut mpsc::UnboundedReceiver<Shutdown>) -> Duration {
    loop {
        match commands.recv().await {
            // It drains already.
            Some(Shutdown::Drain(_)) => (),
            Some(Shutdown::Abort(workers_grace)) => return workers_grace,
            None => return Duration::ZERO,
        }
    }
}

/// Ends workers and lets go of all models; whatever runs is lost with the threads it runs on.
async fn abort(state: &ServerState, backends: Backends, workers_grace: Duration) -> Ending {
    state.lifecycle.exit();
    state.repository.control.end();
    let deadline = Instant::now() + workers_grace;
    // It only fails if it panics.
    let _ = spawn_blocking(move || backends.wait_for_workers(deadline)).await;
    Ending::Aborted
}

/// Opens the listeners and begins to load.
async fn open(options: &Serve, log: &Log) -> Result<OpenServer> {
    settings::warn_without_effect(options);
    let mut settings_of_models = settings::of_models(options);
    let budget = settings::budget(options);
    let sizes = python::sizes(&settings_of_models.backend)?;
    let idle_limit = memory_limit::idle_shared_bytes();
    let segments = SegmentPool::of_server(sizes, idle_limit, &budget);
    actix_rt::spawn(trim(Arc::downgrade(&segments)));
    let backends = settings_of_models.backends.clone();
    let metrics = machine::metrics(options);
    settings_of_models.backend.budget = budget.clone();
    settings_of_models.backend.segments = segments.clone();
    settings_of_models.backend.metrics = metrics.clone();
    if let Some(config) = options.cache().map_err(Error::invalid)? {
        let cache = ResponseCache::open(&config).await?;
        settings_of_models.cache = Some(cache.clone());
        metrics.show_cache(move || cache.usage());
    }
    let trace = options.trace.parsed().map_err(Error::invalid)?;
    let tracer = Tracer::start(&trace).map_err(Error::internal)?;
    let cell = http::StateCell::default();
    let mut listeners = Listeners::default();
    let connections = settings::connections(options, &budget);
    let access = settings::access(options);
    let urls = Arc::default();
    let shared = settings::Shared { budget, segments, connections, urls, access };
    let count = cpu_limit::engine_threads(options);
    let threads = threads::of_engine(count, settings::rate_limiter(options));
    listeners.open_http(options, &cell, &shared, &threads)?;
    let engines = &threads.engines;
    allocator::watch(engines.all(), &shared.budget);
    let started = repository::start(settings_of_models, engines.clone(), metrics.clone());
    let state = ServerState {
        repository: started.repository,
        settings: settings::of_gateways(options, log, shared),
        lifecycle: Arc::new(Lifecycle::default()),
        tracer: Arc::new(tracer),
    };
    if 0 < options.stall_warning_secs {
        let limit = Duration::from_secs(options.stall_warning_secs.into());
        actix_rt::spawn(repository::watch_stalled(state.repository.catalog.clone(), limit));
    }
    // It was made above, and nobody else sets it.
    let _ = cell.set(state.clone());
    let others = listeners.open_grpc(options, &state, &threads);
    if let Err(error) = others.and_then(|()| listeners.open_metrics(options, &state, &metrics)) {
        state.repository.control.end();
        return Err(error);
    }
    listeners.watch_certificates();
    listeners.announce(&state.settings);
    let running = Running { state, addresses: listeners.addresses(), metrics };
    Ok(OpenServer { running, backends, listeners, first_load: started.initial })
}

/// Gives back shared memory that was not used for a while.
async fn trim(segments: Weak<SegmentPool>) {
    let mut ticks = tokio::time::interval(TRIM_INTERVAL);
    loop {
        ticks.tick().await;
        let Some(segments) = segments.upgrade() else { return };
        segments.trim(IDLE_SEGMENT_AGE);
    }
}
