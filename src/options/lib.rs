//! The command line: Triton's flags, and a few of ours.

mod arguments;
mod bench;
mod cache;
mod compatibility;
mod connection;
mod cors;
mod dashboard;
mod forwarding;
mod grpc;
mod infer;
mod listeners;
mod log;
mod memory;
mod metrics;
mod models;
mod new;
mod rate_limit;
mod replay;
mod restricted;
mod shared_memory;
mod spin;
mod tap;
mod tls;
mod trace;

use std::{collections::BTreeMap, num::ParseIntError, path::PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

pub use self::{
    arguments::{NoOptions, parse},
    bench::{BenchArguments, Levels, MAX_IN_FLIGHT},
    cache::{CacheArguments, CacheConfig, CacheSetting, RedisConfig, RedisTls},
    compatibility::{NOT_YET, WithoutEffect},
    connection::ConnectionArguments,
    cors::{AllowedOrigin, Cors},
    dashboard::Dashboard,
    forwarding::{Forwarding, HeaderPattern},
    grpc::{GrpcArguments, GrpcCompression},
    infer::{InferArguments, RequestArguments, RunOnceArguments},
    listeners::{ListenerArguments, UNIX_SOCKET},
    log::{LogArguments, LogFormat},
    memory::MemoryArguments,
    metrics::{MetricsArguments, MetricsSetting},
    models::{LogsArguments, ModelsArguments, ReloadArguments},
    new::{NewCommand, NewEnsembleArguments, NewModelArguments, NewTarget},
    rate_limit::{RateLimit, RateLimitArguments, RateLimitResource},
    replay::{ReplayArguments, Requests},
    restricted::{Api, Restricted, RestrictedGroup, Secret},
    shared_memory::SharedMemoryArguments,
    spin::Spin,
    tap::TapArguments,
    tls::{PemFile, TlsArguments, TlsFiles},
    trace::{OpenTelemetry, OtlpProtocol, Trace, TraceConfig, TraceLevels, TraceMode},
};

/// Models that are loaded at the same time, at most.
const MAX_LOAD_THREADS: u32 = 256;

/// A model server for ensembles; takes the flags of tritonserver.
#[derive(Debug, Parser)]
#[command(
    name = "troupe",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
pub struct Options {
    /// Subcommand; without one it serves.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to serve.
    #[command(flatten)]
    pub serve: Serve,
}

/// What the binary does other than serve.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a new model, ensemble or pipeline that works at once, and say what to run next
    #[command(subcommand)]
    New(NewCommand),
    /// Check the configs and files of a repository and print every problem, without loading anything
    Check {
        /// Then load everything once, listen nowhere, and end
        #[arg(long)]
        load: bool,
        /// A setting of a backend, as of the server: `python,python=PATH` names the interpreter
        #[arg(long, value_parser = backend_setting)]
        backend_config: Vec<((String, String), String)>,
        /// Folders of models
        #[arg(required = true)]
        repositories: Vec<PathBuf>,
    },
    /// Print the config.pbtxt of the ensemble that a pipeline in Python is
    Compile {
        /// The pipeline's file, or the folder it is in
        pipeline: PathBuf,
        /// Folder of the models that it calls [default: the one that the pipeline's folder is in]
        #[arg(long)]
        model_repository: Option<PathBuf>,
        /// A setting of a backend, as of the server
        #[arg(long, value_parser = backend_setting)]
        backend_config: Vec<((String, String), String)>,
    },
    /// Draw the graph of an ensemble
    Graph {
        /// The ensemble's name
        model: String,
        /// Folder of models that it is in
        #[arg(long, default_value = "model_repository")]
        model_repository: PathBuf,
        /// Format: a picture, or source for a drawing tool
        #[arg(long, value_enum, default_value = "svg")]
        format: GraphFormat,
        /// File to write instead of the terminal
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
    /// Send one request to a running server and print the outputs
    Infer(InferArguments),
    /// Load a model or an ensemble, send it one request, print the outputs, and leave; no ports
    RunOnce(RunOnceArguments),
    /// List the models of a running server: version, state, and why one is not ready
    Models(ModelsArguments),
    /// Load models again from disk; the server needs --model-control-mode=explicit
    Reload(ReloadArguments),
    /// Print what a running server has logged about a model: loads, failures, what it printed
    Logs(LogsArguments),
    /// Run an ensemble's steps again on captured tensors and compare their outputs
    ///
    /// The exit code is 0 if all outputs are equal to the captured ones byte by byte, 1 if one of
    /// them differs, and 2 if they could not be compared.
    Replay(ReplayArguments),
    /// Measure a model under load and name the step that is the bottleneck
    Bench(BenchArguments),
}

/// How to draw a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GraphFormat {
    /// Source for Graphviz.
    Dot,
    /// Source for Mermaid.
    Mermaid,
    /// A picture.
    Svg,
}

/// Whether models are loaded at start or on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ControlMode {
    /// All at start, never after.
    None,
    /// By the load and unload API.
    Explicit,
}

/// How to serve.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Serving")]
pub struct Serve {
    /// Folder of models; may be given more than once [default: model_repository]
    #[arg(long, alias = "model-store")]
    pub model_repository: Vec<PathBuf>,
    /// `none`: all models are loaded at start; `explicit`: those of --load-model, others on request
    #[arg(long, default_value = "none", value_parser = control_mode)]
    pub model_control_mode: ControlMode,
    /// Model to load at start in explicit mode; may be given more than once, `*` for all
    #[arg(long)]
    pub load_model: Vec<String>,
    /// For development: load models again as their files are saved, in any control mode, and new
    /// ones unless it is `explicit`. One that fails goes on as it was before, and does not end the
    /// server at start
    #[arg(long, value_parser = switch, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub watch: bool,
    /// Do not complete configs from model files: what they lack is an error
    #[arg(long, value_parser = switch, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub disable_auto_complete_config: bool,
    /// Deprecated: the opposite of --disable-auto-complete-config
    #[arg(long, value_parser = switch, hide = true)]
    pub strict_model_config: Option<bool>,
    /// Ready only when every model is
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub strict_readiness: bool,
    /// Exit when a model fails to load at start
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub exit_on_error: bool,
    /// Seconds that requests in flight may take at shutdown
    #[arg(long, default_value = "30", value_parser = not_negative)]
    pub exit_timeout_secs: u64,
    /// Log a warning about a model whose oldest request made no progress for so many seconds; 0:
    /// never
    #[arg(long, default_value_t = 30)]
    pub stall_warning_secs: u32,
    /// The server's name in its metadata
    #[arg(long, default_value = "triton")]
    pub id: String,
    /// Models loaded at the same time
    #[arg(long, default_value = "4", value_parser = load_threads)]
    pub model_load_thread_count: u32,
    /// Retries after a failed load
    #[arg(long, default_value_t = 0)]
    pub model_load_retry_count: u32,
    /// `<backend>,<key>=<value>`, or `<key>=<value>` for all backends: `onnxruntime,library=PATH`
    /// names ONNX Runtime's library or its folder, `python,python=PATH` the interpreter,
    /// `python,cache=DIR` the folder for the environments that are made
    #[arg(long, value_parser = backend_setting)]
    pub backend_config: Vec<((String, String), String)>,
    /// Make missing Python environments and fetch a missing ONNX Runtime: `auto` or `never`
    #[arg(long, default_value = "auto", value_parser = provision, action = ArgAction::Set)]
    pub provision: bool,
    /// How long the server and workers of Python models poll for each other before they sleep:
    /// `auto` where a core is free, `off`, or at most so many microseconds, also where none is
    #[arg(long, value_name = "auto|off|MICROSECONDS", default_value = "auto", value_parser = spin::spin)]
    pub spin: Spin,
    /// Where to listen, and how.
    #[command(flatten)]
    pub listeners: ListenerArguments,
    /// What executes beside each other.
    #[command(flatten)]
    pub rate_limits: RateLimitArguments,
    /// What requests in flight may hold.
    #[command(flatten)]
    pub memory: MemoryArguments,
    /// Where answers of models are kept.
    #[command(flatten)]
    pub cache: CacheArguments,
    /// How gRPC connections are kept, and how answers are written.
    #[command(flatten)]
    pub grpc: GrpcArguments,
    /// Which ports are encrypted.
    #[command(flatten)]
    pub tls: TlsArguments,
    /// What is measured, and how it is shown.
    #[command(flatten)]
    pub metrics: MetricsArguments,
    /// The page of live graphs.
    #[command(flatten)]
    pub dashboard: Dashboard,
    /// What to log.
    #[command(flatten)]
    pub log: LogArguments,
    /// What to trace.
    #[command(flatten)]
    pub trace: Trace,
    /// Who may capture tensors.
    #[command(flatten)]
    pub tap: TapArguments,
    /// Whether clients may hand tensors over in shared memory.
    #[command(flatten)]
    pub shared_memory: SharedMemoryArguments,
    /// Triton's flags that are accepted without effect.
    #[command(flatten)]
    pub without_effect: WithoutEffect,
}

impl Default for Serve {
    /// The defaults of the command line.
    fn default() -> Serve {
        Options::parse_from(["troupe"]).serve
    }
}

impl Serve {
    /// The backend settings, by backend and key.
    pub fn backend_settings(&self) -> BTreeMap<(String, String), String> {
        self.backend_config.iter().cloned().collect()
    }

    /// Whether backends complete configs; `--strict-model-config` is the deprecated way to say no.
    pub fn auto_complete(&self) -> bool {
        !self.disable_auto_complete_config && self.strict_model_config != Some(true)
    }

    /// The response cache, if there is one; what the flags leave out of a Redis' user and password
    /// is in the environment.
    pub fn cache(&self) -> Result<Option<CacheConfig>, String> {
        self.cache.parsed(|name| std::env::var(name).ok())
    }

    /// Why the flags contradict each other.
    pub fn problem(&self) -> Option<String> {
        if !self.load_model.is_empty() && self.model_control_mode != ControlMode::Explicit {
            return Some(
                "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as \
                 well."
                    .to_owned(),
            );
        }
        if 1 < self.load_model.len() && self.load_model.iter().any(|it| it == "*") {
            return Some("Error: '--load-model=*' must be the only --load-model".to_owned());
        }
        if let Some(problem) = self.listeners.restricted.problem() {
            return Some(problem);
        }
        if let Err(problem) = self.cache() {
            return Some(problem);
        }
        if let Err(problem) = self.trace.parsed() {
            return Some(problem);
        }
        self.listeners.problem(&self.tls)
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(format!("invalid value for bool option: {text} (expected true or false)")),
    }
}

/// Less than nothing is nothing, as in Triton.
fn not_negative(text: &str) -> Result<u64, ParseIntError> {
    text.parse::<i64>().map(|it| u64::try_from(it).unwrap_or(0))
}

/// At least one, as in Triton, and at most as many as are of use.
fn load_threads(text: &str) -> Result<u32, ParseIntError> {
    text.parse::<u32>().map(|it| it.clamp(1, MAX_LOAD_THREADS))
}

fn provision(text: &str) -> Result<bool, String> {
    match text {
        "auto" => Ok(true),
        "never" => Ok(false),
        _ => Err(format!("expected `auto` or `never`, got `{text}`")),
    }
}

fn control_mode(text: &str) -> Result<ControlMode, String> {
    match &*text.to_ascii_lowercase() {
        "none" => Ok(ControlMode::None),
        "explicit" => Ok(ControlMode::Explicit),
        "poll" => Err("`poll` is not supported yet; use `none` or `explicit`".to_owned()),
        _ => Err(format!(
            "invalid argument for --model-control-mode: expected `none` or `explicit`, got `{text}`"
        )),
    }
}

fn backend_setting(text: &str) -> Result<((String, String), String), String> {
    let wrong = || format!("expected `<backend>,<key>=<value>` or `<key>=<value>`, got `{text}`");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let (backend, key) = name.split_once(',').unwrap_or(("", name));
    if key.is_empty() {
        return Err(wrong());
    }
    Ok(((backend.to_owned(), key.to_owned()), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(arguments: &[&str]) -> Result<Serve, String> {
        let all = std::iter::once("troupe").chain(arguments.iter().copied());
        let options = Options::try_parse_from(all).map_err(|it| it.to_string())?;
        options.serve.problem().map_or(Ok(options.serve), Err)
    }

    #[test]
    fn takes_tritons_flags_in_both_spellings() {
        let options = serve(&["--model-store=a", "--model-repository", "b", "--http-port=0"]);
        let options = options.unwrap();
        assert_eq!(options.model_repository, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!(options.listeners.http_port, 0);
        assert!(serve(&["--strict-readiness=OFF"]).is_ok_and(|it| !it.strict_readiness));
        assert!(serve(&["--disable-auto-complete-config"]).is_ok_and(|it| !it.auto_complete()));
        assert!(serve(&["--log-verbose=true"]).is_ok_and(|it| it.log.log_verbose == 1));
        let log = serve(&["--log-format=ISO8601", "--access-log", "--log-file", "a"]).unwrap().log;
        assert_eq!((log.log_format, log.access_log), (LogFormat::Iso8601, true));
        assert_eq!(log.log_file, Some(PathBuf::from("a")));
    }

    #[test]
    fn says_what_is_wrong() {
        let rows = [
            (vec!["--nonsense"], "--nonsense"),
            (vec!["--model-control-mode=poll"], "not supported yet"),
            (vec!["--model-control-mode=x"], "invalid argument for --model-control-mode"),
            (vec!["--http-max-input-size=0"], "must be greater than 0"),
            (vec!["--max-inflight-bytes=0"], "must be greater than 0"),
            (vec!["--max-inflight-bytes=1048575"], "must be at least 1048576 bytes"),
            (vec!["--log-format=iso8601"], "invalid argument for --log-format"),
            (vec!["--load-model=a"], "requires setting '--model-control-mode=explicit'"),
            (vec!["--grpc-port=8000"], "HTTP requests and GRPC requests at the same address"),
            (vec!["--cache-config=local,x=1"], "local,x is unknown; cache 'local' has: size"),
            (vec!["--backend-config=python"], "expected `<backend>,<key>=<value>`"),
        ];
        for (arguments, expected) in rows {
            let error = serve(&arguments).unwrap_err();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
