//! One server from start to end: doors open, models load, requests run, everything ends.

mod doors;
mod end;
mod machine;
mod summary;

use std::{
    process::ExitCode,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use actix_rt::System;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    doors::Doors,
    end::{LAST_GRACE, end},
    summary::loaded,
};
use troupe_backends::{gpus, python};
use troupe_base::{
    backend::{self},
    budget::Budget,
    config,
    tensor::SegmentPool,
};
use troupe_engine::engines::Engines;
use troupe_gateway::{ServerState, http, lifecycle::Lifecycle, settings::Settings};
use troupe_observability::{log::Log, telemetry::Tracer};
use troupe_options::Serve;
use troupe_repository as repository;

/// How often unused shared memory is looked for; it stays for two of these.
const TRIM_INTERVAL: Duration = Duration::from_secs(5);

/// Serves until told to end. Answers the exit code: 0 when everything accepted was finished.
pub fn run(options: Serve, log: Log) -> ExitCode {
    let system = System::new();
    let code = system.block_on(async {
        match serve(options, log).await {
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

async fn serve(options: Serve, log: Log) -> Result<ExitCode, String> {
    let mut told = Told::new()?;
    for flag in options.without_effect.given() {
        tracing::warn!("{flag} has no effect here");
    }
    for (backend, key) in options.backend_settings().into_keys() {
        if !troupe_backends::SETTINGS.contains(&(&*backend, &*key)) {
            let name = if backend.is_empty() { key } else { format!("{backend},{key}") };
            tracing::warn!("--backend-config={name} has no effect here");
        }
    }
    let mut settings_of_models = settings(&options);
    let sizes = python::sizes(&settings_of_models.backend).map_err(|error| error.to_string())?;
    let segments = SegmentPool::of_server(sizes);
    settings_of_models.backend.segments = segments.clone();
    let backends = settings_of_models.backends.clone();
    actix_rt::spawn(trim(Arc::downgrade(&segments)));
    let metrics = machine::metrics(&options);
    settings_of_models.backend.metrics = metrics.clone();
    let tracer = Tracer::start(&options.trace.parsed()?)?;
    let door = http::StateCell::default();
    let mut doors = Doors::default();
    let engines = Engines::new(doors.open_http(&options, &door).await?);
    let started = repository::start(settings_of_models, engines.clone(), metrics.clone());
    let gate = ServerState {
        repository: started.repository,
        settings: Settings {
            server_id: options.id.clone(),
            max_input_size: options.doors.http_max_input_size,
            strict_readiness: options.strict_readiness,
            allow_dashboard: options.dashboard.allow_dashboard,
            segments,
            log: log.clone(),
            access_log: options.log.access_log,
            tap: options.tap.allow_tap.then(|| Budget::new(options.tap.tap_max_bytes)),
        },
        lifecycle: Arc::new(Lifecycle::default()),
        tracer: Arc::new(tracer),
    };
    if 0 < options.stall_warning_secs {
        let limit = Duration::from_secs(options.stall_warning_secs.into());
        actix_rt::spawn(repository::watch_stalled(gate.repository.catalog.clone(), limit));
    }
    let _ = door.set(gate.clone());
    doors.open_others(&options, &gate, (&engines, &metrics))?;
    doors.announce();

    let loaded = tokio::select! {
        summary = started.initial => loaded(&summary, &options, &log),
        () = told.wait() => {
            backends.wait_for_workers(Instant::now());
            return Ok(ExitCode::SUCCESS);
        }
    };
    // A model that failed leaves the others serving; without a repository there are none.
    gate.lifecycle.started(settings(&options).repositories.iter().any(|it| it.is_dir()));
    if !loaded && options.exit_on_error {
        tracing::error!("error: creating server: Internal - failed to load all models");
        backends.wait_for_workers(Instant::now() + LAST_GRACE);
        return Ok(ExitCode::FAILURE);
    }

    told.wait().await;
    tokio::select! {
        code = end(gate, backends.clone(), doors, Duration::from_secs(options.exit_timeout_secs)) => Ok(code),
        () = told.wait() => {
            tracing::warn!("told to end again: not waiting any longer");
            backends.wait_for_workers(Instant::now());
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Gives back shared memory that was not used for a while.
async fn trim(segments: Weak<SegmentPool>) {
    let mut ticks = tokio::time::interval(TRIM_INTERVAL);
    loop {
        ticks.tick().await;
        let Some(segments) = segments.upgrade() else { return };
        segments.trim(2 * TRIM_INTERVAL);
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
        mode: options.model_control_mode,
        load_models: options.load_model.clone(),
        auto_complete: options.auto_complete(),
        threads: options.model_load_thread_count as usize,
        retry_count: options.model_load_retry_count,
        backend: backend::Settings {
            options: options.backend_settings(),
            provision: options.provision,
            ..backend::Settings::default()
        },
        config: config::ServerFeatures { gpus: gpus::usable },
        ..repository::Settings::default()
    }
}
