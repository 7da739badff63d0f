//! One server from start to end: doors open, models load, requests run, everything ends.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Addr;
use actix_rt::{Arbiter, ArbiterHandle, System};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::spawn_blocking,
    time::{timeout, timeout_at},
};

use crate::{
    backend::{self, gpus, python},
    config,
    engines::Engines,
    gateway::{
        Gate, describe,
        grpc::{self, GrpcGateway},
        http::{self, HttpGateway},
        metrics::{self, MetricsGateway},
        settings::{Lifecycle, Settings},
    },
    metrics::Metrics,
    options::{ControlMode, Serve},
    repository::{self, Mode, Summary},
    table::table,
    tensor::SegmentPool,
};

/// What worker processes have at the end, a little more than one has to finalize its model.
const WORKERS_GRACE: Duration = Duration::from_secs(3);
/// What a door has at the end to write answers that are ready.
const LAST_GRACE: Duration = Duration::from_millis(200);

/// Serves until told to end. Answers the exit code: 0 when everything accepted was finished.
pub fn run(options: Serve) -> ExitCode {
    let system = System::new();
    let code = system.block_on(async {
        match serve(options).await {
            Ok(code) => code,
            Err(error) => {
                tracing::error!("{error}");
                ExitCode::FAILURE
            }
        }
    });
    // Dropping the runtime would wait for whatever still blocks one of its threads.
    std::mem::forget(system);
    code
}

async fn serve(options: Serve) -> Result<ExitCode, String> {
    let mut told = Told::new()?;
    for flag in options.without_effect.given() {
        tracing::warn!("{flag} has no effect here");
    }
    for (backend, key) in options.backend_settings().into_keys() {
        if !backend::SETTINGS.contains(&(&*backend, &*key)) {
            let name = if backend.is_empty() { key } else { format!("{backend},{key}") };
            tracing::warn!("--backend-config={name} has no effect here");
        }
    }
    let mut settings_of_models = settings(&options);
    let sizes = python::sizes(&settings_of_models.backend).map_err(|error| error.to_string())?;
    SegmentPool::configure_shared(sizes);
    let metrics = Metrics::new();
    settings_of_models.backend.metrics = metrics.clone();
    let door = http::Door::default();
    let mut doors = Doors::default();
    let engines = Engines::new(doors.open_http(&options, &door).await?);
    let started = repository::start(settings_of_models, engines.clone(), metrics.clone());
    let gate = Gate {
        repository: started.repository,
        settings: Settings {
            server_id: options.id.clone(),
            max_input_size: options.doors.http_max_input_size,
            strict_readiness: options.strict_readiness,
            segments: SegmentPool::shared().clone(),
        },
        lifecycle: Arc::new(Lifecycle::default()),
    };
    if 0 < options.stall_warning_secs {
        let limit = Duration::from_secs(options.stall_warning_secs.into());
        actix_rt::spawn(repository::watch(gate.repository.catalog.clone(), limit));
    }
    let _ = door.set(gate.clone());
    doors.open_others(&options, &gate, (&engines, &metrics))?;
    doors.announce();

    let loaded = tokio::select! {
        summary = started.initial => loaded(&summary, &options),
        () = told.wait() => {
            python::wait_for_workers(Instant::now());
            return Ok(ExitCode::SUCCESS);
        }
    };
    // A model that failed leaves the others serving; without a repository there are none.
    gate.lifecycle.started(settings(&options).repositories.iter().any(|it| it.is_dir()));
    if !loaded && options.exit_on_error {
        tracing::error!("error: creating server: Internal - failed to load all models");
        python::wait_for_workers(Instant::now() + LAST_GRACE);
        return Ok(ExitCode::FAILURE);
    }

    told.wait().await;
    tokio::select! {
        code = end(gate, doors, Duration::from_secs(options.exit_timeout_secs)) => Ok(code),
        () = told.wait() => {
            tracing::warn!("told to end again: not waiting any longer");
            python::wait_for_workers(Instant::now());
            Ok(ExitCode::FAILURE)
        }
    }
}

/// SIGTERM and SIGINT.
struct Told(Signal, Signal);

impl Told {
    fn new() -> Result<Told, String> {
        let on = |kind| signal(kind).map_err(|error| format!("cannot watch signals: {error}"));
        Ok(Told(on(SignalKind::terminate())?, on(SignalKind::interrupt())?))
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.0.recv() => (),
            _ = self.1.recv() => (),
        }
    }
}

fn settings(options: &Serve) -> repository::Settings {
    let mut repositories = options.model_repository.clone();
    if repositories.is_empty() {
        repositories.push("model_repository".into());
    }
    repository::Settings {
        repositories,
        mode: match options.model_control_mode {
            ControlMode::None => Mode::None,
            ControlMode::Explicit => Mode::Explicit,
        },
        load_models: options.load_model.clone(),
        auto_complete: options.auto_complete(),
        threads: options.model_load_thread_count as usize,
        retry_count: options.model_load_retry_count,
        backend: backend::Settings {
            options: options.backend_settings(),
            provision: options.provision,
            ..backend::Settings::default()
        },
        config: config::Options { gpus: gpus::usable },
        ..repository::Settings::default()
    }
}

/// What is open. What is not allowed is not there.
#[derive(Default)]
struct Doors {
    http: Option<(Addr<HttpGateway>, Vec<SocketAddr>)>,
    grpc: Option<(Addr<GrpcGateway>, Vec<SocketAddr>)>,
    metrics: Option<(Addr<MetricsGateway>, Vec<SocketAddr>)>,
}

impl Doors {
    /// The workers of the HTTP gateway are the engine's threads; without it there are others.
    async fn open_http(
        &mut self,
        options: &Serve,
        door: &http::Door,
    ) -> Result<Vec<ArbiterHandle>, String> {
        let workers =
            options.doors.http_thread_count.map_or_else(default_threads, |it| it as usize);
        if !options.doors.allow_http {
            return Ok((0..workers).map(|_| Arbiter::new().handle()).collect());
        }
        let addresses = addresses(&options.doors.http_address, options.doors.http_port)?;
        let exit_timeout = Duration::from_secs(options.exit_timeout_secs);
        let listen = http::Listen { addresses: addresses.clone(), workers, exit_timeout };
        let started = http::start(door.clone(), listen).await;
        let started = started.map_err(|error| cannot_listen("HTTP", &addresses, &error))?;
        self.http = Some((started.gateway, started.addresses));
        Ok(started.workers)
    }

    fn open_others(
        &mut self,
        options: &Serve,
        gate: &Gate,
        (engines, metrics): (&Engines, &Metrics),
    ) -> Result<(), String> {
        let doors = &options.doors;
        if doors.allow_grpc {
            let at = addresses(&doors.grpc_address, doors.grpc_port)?;
            let opened = GrpcGateway::start(gate, &at, engines.all());
            self.grpc = Some(opened.map_err(|error| cannot_listen("gRPC", &at, &error))?);
        }
        if doors.allow_metrics {
            let address = doors.metrics_address.as_ref().unwrap_or(&doors.http_address);
            let at = addresses(address, doors.metrics_port)?;
            let opened = MetricsGateway::start(gate, metrics, &at);
            self.metrics = Some(opened.map_err(|error| cannot_listen("metrics", &at, &error))?);
        }
        Ok(())
    }

    fn announce(&self) {
        let told = |service: &str, addresses: &[SocketAddr]| {
            for address in addresses {
                tracing::info!("Started {service} at {address}");
            }
        };
        if let Some((_, addresses)) = &self.grpc {
            told("GRPCInferenceService", addresses);
        }
        if let Some((_, addresses)) = &self.http {
            told("HTTPService", addresses);
        }
        if let Some((_, addresses)) = &self.metrics {
            told("Metrics Service", addresses);
        }
    }

    /// Each door has `grace` to write what is ready and say goodbye.
    async fn close(self, grace: Duration) {
        if let Some((metrics, _)) = self.metrics {
            let _ = timeout(grace, metrics.send(metrics::Stop)).await;
        }
        if let Some((grpc, _)) = self.grpc {
            let _ = timeout(grace, grpc.send(grpc::Stop)).await;
        }
        if let Some((http, _)) = self.http {
            let _ = timeout(grace, http.send(http::Stop { graceful: true })).await;
        }
    }
}

/// Half the cores: the other half is for the models.
fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    (cores / 2).clamp(1, 8)
}

fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let resolved = (host, port).to_socket_addrs();
    let resolved = resolved.map_err(|error| format!("cannot resolve address {host}: {error}"))?;
    // One listener a name: `localhost` may mean two.
    Ok(resolved.take(1).collect())
}

fn cannot_listen(service: &str, addresses: &[SocketAddr], error: &io::Error) -> String {
    let at: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    format!("failed to listen for {service} requests at {}: {error}", at.join(", "))
}

/// Prints the tables. `false` when something failed.
fn loaded(summary: &Summary, options: &Serve) -> bool {
    let version = |it: Option<i64>| it.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let row =
        |it: &repository::Row| vec![it.model.to_string(), version(it.version), it.status.clone()];
    let rows: Vec<Vec<String>> = summary.rows.iter().map(row).collect();
    print(&table(&["Model", "Version", "Status"], &rows));
    print(&table(&["Option", "Value"], &option_rows(options)));
    summary.is_ok
}

fn option_rows(options: &Serve) -> Vec<Vec<String>> {
    let mut rows = vec![
        ("server_id".to_owned(), options.id.clone()),
        ("server_version".to_owned(), describe::VERSION.to_owned()),
        ("troupe_version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ];
    for (index, path) in settings(options).repositories.iter().enumerate() {
        rows.push((format!("model_repository_path[{index}]"), path.display().to_string()));
    }
    let mode = match options.model_control_mode {
        ControlMode::None => "MODE_NONE",
        ControlMode::Explicit => "MODE_EXPLICIT",
    };
    rows.push(("model_control_mode".to_owned(), mode.to_owned()));
    for (index, model) in options.load_model.iter().enumerate() {
        rows.push((format!("startup_models_{index}"), model.clone()));
    }
    let number = |it: bool| u8::from(it).to_string();
    rows.push(("strict_model_config".to_owned(), number(!options.auto_complete())));
    rows.push(("strict_readiness".to_owned(), number(options.strict_readiness)));
    rows.push(("exit_timeout".to_owned(), options.exit_timeout_secs.to_string()));
    rows.push(("provision".to_owned(), number(options.provision)));
    rows.into_iter().map(|(name, value)| vec![name, value]).collect()
}

/// For people at a terminal; the log has the same facts line by line.
fn print(text: &str) {
    eprintln!("\n{}", text.trim_end());
}

/// Refuses new requests, lets accepted ones finish all their steps, ends workers.
async fn end(gate: Gate, doors: Doors, grace: Duration) -> ExitCode {
    let deadline = Instant::now() + grace;
    gate.lifecycle.exit();
    tracing::info!("Waiting for in-flight requests to complete.");
    let is_finished = timeout_at(deadline.into(), finish(&gate, deadline)).await.is_ok();
    if !is_finished {
        tracing::error!("Exit timeout expired. Exiting immediately.");
    }
    // Models go with their last owner, and their workers with them.
    gate.repository.control.end();
    drop(gate);
    let grace = if is_finished { WORKERS_GRACE } else { Duration::ZERO };
    let workers_until = deadline.min(Instant::now() + grace);
    let _ = spawn_blocking(move || python::wait_for_workers(workers_until)).await;
    // The HTTP gateway's threads are the engine's, so it goes last. Answers that are ready are
    // still written; idle connections are not waited for.
    doors.close(if is_finished { LAST_GRACE } else { Duration::ZERO }).await;
    if is_finished { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Says once a second what is waited for.
async fn finish(gate: &Gate, deadline: Instant) {
    let mut idle = std::pin::pin!(gate.lifecycle.wait_idle());
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_secs();
        let count = gate.lifecycle.in_flight();
        tracing::info!("Timeout {left}: Found {count} inferences in flight");
        if timeout(Duration::from_secs(1), &mut idle).await.is_ok() {
            return;
        }
    }
}
