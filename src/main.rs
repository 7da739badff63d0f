//! The command line: serves until a signal, or runs a subcommand; owns exit codes and the log.

mod compile;
mod descriptors;
mod run_once;
mod signals;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use signals::Signals;
use troupe::server::{Ending, Server};
use troupe_backends::gpus;
use troupe_base::{config, text::encode_path_segment};
use troupe_draw as draw;
use troupe_observability::log;
use troupe_options::{self as options, Command, GraphFormat};
use troupe_repository as repository;
use troupe_tools as client;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code of `replay` when it cannot say whether something differs.
const NOT_REPLAYED: u8 = 2;
/// What worker processes have to finalize their models when the start has failed.
const WORKERS_GRACE: Duration = Duration::from_millis(200);
/// What they have after `check --load`.
const LOAD_ONCE_GRACE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    // The allocator would get huge pages: 25 MiB more at rest, and nothing the faster for it.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let arguments = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
    let arguments: Vec<String> = arguments.collect();
    let options = match options::parse(&arguments) {
        Ok(options) => options,
        Err(none) if none.is_mistake => {
            let code = fail(&none.text);
            let is_replay = arguments.first().is_some_and(|it| it == "replay");
            return if is_replay { ExitCode::from(NOT_REPLAYED) } else { code };
        }
        // Help or the version; nothing can be done about a closed terminal.
        Err(none) => {
            let _ = print(&none.text);
            return ExitCode::SUCCESS;
        }
    };
    match options.command {
        None => {
            if let Some(problem) = options.serve.problem() {
                return fail(&problem);
            }
            match log(&options.serve.log) {
                Ok(log) => {
                    let _written = log.flush_on_drop();
                    log::log_panics();
                    descriptors::raise_limit();
                    serve(options.serve, log)
                }
                Err(text) => fail(&text),
            }
        }
        Some(Command::New(asked)) => ended(repository::create(&asked).and_then(|it| print(&it))),
        Some(Command::Check { repositories, load, backend_config }) => {
            check(repositories, backend_config, load)
        }
        Some(Command::Compile { pipeline, model_repository, backend_config }) => {
            let compiled = compile::compile(&pipeline, model_repository, backend_config);
            ended(compiled.and_then(|it| print(&it)))
        }
        Some(Command::Graph { model, model_repository, format, output }) => {
            let drawn = has_graph(&model, &model_repository);
            let folder = model_repository.join(model);
            ended(drawn.and_then(|()| graph(&folder, format, output.as_deref())))
        }
        Some(Command::Replay(asked)) => replay(&asked),
        Some(Command::Infer(asked)) => ended(client::infer(&asked).and_then(|it| print(&it))),
        Some(Command::RunOnce(asked)) => ended(run_once::run_once(asked).and_then(|it| print(&it))),
        Some(Command::Models(asked)) => ended(client::models(&asked).and_then(|it| print(&it))),
        Some(Command::Reload(asked)) => ended(client::reload(&asked).and_then(|it| print(&it))),
        Some(Command::Logs(asked)) => ended(client::logs(&asked, &print)),
        Some(Command::Bench(asked)) => ended(client::bench(&asked).and_then(|it| {
            print(&it.text)?;
            it.problem.map_or(Ok(()), Err)
        })),
    }
}

/// Serves until a signal. The exit code is 0 when everything accepted was answered.
fn serve(options: options::Serve, log: log::Log) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime for signals: {error}"));
    runtime.and_then(|it| it.block_on(serve_until_signal(options, log))).unwrap_or_else(|error| {
        tracing::error!("{error}");
        ExitCode::FAILURE
    })
}

async fn serve_until_signal(options: options::Serve, log: log::Log) -> Result<ExitCode, String> {
    let mut signals = Signals::watch()?;
    let grace = Duration::from_secs(options.exit_timeout_secs);
    // Whoever edits a model sees it fail, and mends it.
    let exit_on_error = options.exit_on_error && !options.watch;
    let server = Server::start(options, log).await.map_err(|error| error.to_string())?;
    let summary = tokio::select! {
        summary = server.loaded() => summary,
        () = signals.next() => {
            server.abort(Duration::ZERO).await;
            return Ok(ExitCode::SUCCESS);
        }
    };
    if exit_on_error && !summary.as_ref().is_some_and(|it| it.failures.is_empty()) {
        tracing::error!("error: creating server: Internal - failed to load all models");
        server.abort(WORKERS_GRACE).await;
        // The last line: what to look at.
        tracing::error!("{}", culprits(&summary.unwrap_or_default()));
        return Ok(ExitCode::FAILURE);
    }
    tokio::select! {
        () = signals.next() => (),
        _ = server.ended() => return Err("the server ended by itself".to_owned()),
    }
    let ending = tokio::select! {
        ending = server.stop(grace) => ending,
        () = signals.next() => {
            tracing::warn!("second signal received, exiting immediately");
            server.abort(Duration::ZERO).await
        }
    };
    tracing::info!("stopped");
    Ok(if ending == Ending::Drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Why the start failed, and what serves the rest.
fn culprits(summary: &repository::Summary) -> String {
    let failures = &summary.failures;
    let Some(first) = failures.first() else {
        return "stopped because models did not load".to_owned();
    };
    let more = match failures.len() - 1 {
        0 => String::new(),
        more => format!("; and {more} more, see above"),
    };
    // Without a model there is nothing else to serve.
    let anyway = match summary.rows.is_empty() {
        true => "",
        false => " (--exit-on-error=false serves what does load)",
    };
    format!("stopped because {first}{more}{anyway}")
}

/// Starts to log to where the options say.
fn log(options: &options::LogArguments) -> Result<log::Log, String> {
    let to: Box<dyn Write + Send> = match &options.log_file {
        None => Box::new(io::stderr()),
        Some(path) => {
            let file = fs::OpenOptions::new().create(true).append(true).open(path);
            let told = |error| format!("cannot open log file {}: {error}", path.display());
            Box::new(file.map_err(told)?)
        }
    };
    log::start(options, to).map_err(|error| format!("cannot start to log: {error}"))
}

/// Settings of backends: backend and key, value.
type BackendConfig = Vec<((String, String), String)>;

/// Prints every problem; fails if there is one. Loads the models too if it is to.
fn check(repositories: Vec<PathBuf>, backend_config: BackendConfig, is_loading: bool) -> ExitCode {
    let config = config::ServerFeatures { gpus: gpus::usable };
    let mut settings = repository::Settings {
        repositories: repositories.clone(),
        config,
        ..repository::Settings::default()
    };
    settings.backend.options = backend_config.iter().cloned().collect();
    // A pipeline is run once to see its graph, and its interpreter may need numpy.
    settings.backend.provision = true;
    let repository::CheckReport { mut problems, mut warnings, not_compared, notes } =
        repository::check(&settings);
    let does_load = is_loading && problems.is_empty();
    if !does_load {
        warnings.extend(not_compared);
    }
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    if does_load {
        match load_once(repositories, backend_config) {
            Ok(failures) => problems.extend(failures),
            Err(text) => problems.push(text),
        }
        problems.iter().for_each(|problem| eprintln!("{problem}"));
    }
    let count = |number: usize, what: &str| match number {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let mut result = count(problems.len(), "problem");
    if !warnings.is_empty() {
        result += &format!(", {}", count(warnings.len(), "warning"));
    }
    if is_loading {
        result += match (does_load, problems.is_empty()) {
            (true, true) => ", and all models load",
            (true, false) => "",
            (false, _) => "; nothing was loaded: --load does once the files have no problem",
        };
    }
    eprintln!("{result}");
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Loads all models of a server that listens nowhere, and says which did not load.
fn load_once(
    model_repository: Vec<PathBuf>,
    backend_config: BackendConfig,
) -> Result<Vec<String>, String> {
    let quiet = ["allow-http", "allow-grpc", "allow-metrics", "log-info"];
    let quiet = quiet.map(|flag| format!("--{flag}=false"));
    let options = options::parse(&quiet).map_err(|none| none.text)?.serve;
    let options = options::Serve { model_repository, backend_config, ..options };
    let log = log(&options.log)?;
    let _written = log.flush_on_drop();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    runtime.block_on(async {
        let server = Server::start(options, log).await.map_err(|error| error.to_string())?;
        let summary = server.loaded().await;
        server.stop(LOAD_ONCE_GRACE).await;
        Ok(summary.ok_or("the server ended while it loaded")?.failures.clone())
    })
}

/// Is there a file that tells the graph of a model? What to do where there is none.
fn has_graph(model: &str, repository: &Path) -> Result<(), String> {
    let folder = repository.join(model);
    if !folder.is_dir() {
        let entries = fs::read_dir(repository).into_iter().flatten().flatten();
        let folders = entries.filter(|it| it.path().is_dir());
        let names: Vec<_> = folders.filter_map(|it| it.file_name().into_string().ok()).collect();
        let text = format!("there is no model '{model}' in {}", repository.display());
        return Err(config::instead(text, model, "models", names.iter().map(String::as_str)));
    }
    if compile::file_of(&folder).is_file() || folder.join("config.pbtxt").exists() {
        return Ok(());
    }
    let path = encode_path_segment(model);
    Err(format!(
        "'{model}' has neither a config.pbtxt nor a pipeline.py, and is no ensemble: what it takes \
         and gives is known once it is loaded; a running server draws it at \
         http://localhost:8000/v2/models/{path}/graph"
    ))
}

fn graph(folder: &Path, format: GraphFormat, output: Option<&Path>) -> Result<(), String> {
    let pipeline = compile::file_of(folder);
    let file = if pipeline.is_file() { pipeline } else { folder.join("config.pbtxt") };
    let label = file.display().to_string();
    let text = match file.ends_with(repository::PIPELINE_FILE) {
        true => compile::compile(folder, None, Vec::new())?,
        false => fs::read_to_string(&file).map_err(|error| format!("{label}: {error}"))?,
    };
    let beside = folder.parent();
    let text_of_step = |model: &str| {
        let is_name = Path::new(model).components().count() == 1;
        let file = beside.filter(|_| is_name)?.join(model).join("config.pbtxt");
        fs::read_to_string(file).ok()
    };
    let picture = draw::command(&text, &label, format, &text_of_step).map_err(|problems| {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    })?;
    match output {
        Some(path) => {
            fs::write(path, picture).map_err(|error| format!("{}: {error}", path.display()))
        }
        None => print(&picture),
    }
}

fn replay(asked: &options::ReplayArguments) -> ExitCode {
    let replayed = client::replay(asked);
    match replayed.and_then(|it| print(&it.text).map(|()| it.is_equal)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(NOT_REPLAYED)
        }
    }
}

fn print(text: &str) -> Result<(), String> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())
}

fn ended(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => fail(&text),
    }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("{text}");
    ExitCode::FAILURE
}
