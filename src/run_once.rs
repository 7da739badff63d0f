//! `troupe run-once`: loads one model, asks it once, and leaves; over a Unix socket of its own.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use troupe::server::Server;
use troupe_observability::log::{self, Log, LogChange};
use troupe_options::{
    ConnectionArguments, ControlMode, InferArguments, RunOnceArguments, Serve, UNIX_SOCKET,
};
use troupe_tools as client;

/// What models have to end once they have answered.
const END_GRACE: Duration = Duration::from_secs(10);

/// What to print of the model's answer, or why there is none.
pub(crate) fn run_once(asked: RunOnceArguments) -> Result<String, String> {
    let (repository, model) = place(&asked.folder)?;
    let sockets = SocketFolder::new()?;
    let url = format!("{UNIX_SOCKET}{}", sockets.0.join("grpc").display());
    let options = options(&asked, repository, &model, &url);
    let log = log::start(&options.log, Box::new(io::stderr()));
    let log = log.map_err(|error| format!("cannot start to log: {error}"))?;
    let _written = log.flush_on_drop();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    // The table of models is no answer.
    let server_log = if asked.log { log.clone() } else { Log::silent() };
    let server = runtime.block_on(Server::start(options, server_log));
    let server = server.map_err(|error| error.to_string())?;
    let loaded = runtime.block_on(server.loaded());
    let unloaded = loaded.map_or_else(
        || Some("the server ended".to_owned()),
        |it| {
            let failed = it.rows.iter().filter(|row| row.status != "READY");
            let failed = failed.map(|row| format!("model '{}': {}", row.model, row.status));
            (!it.is_ok).then(|| failed.collect::<Vec<_>>().join("\n"))
        },
    );
    let answer = match unloaded {
        Some(text) => Err(text),
        None => {
            // What models print while they answer is wanted, what the server does is not.
            let info = |is_shown| LogChange { info: Some(is_shown), ..LogChange::default() };
            log.change(&info(true));
            let header = Vec::new();
            let answer = client::infer(&InferArguments {
                model,
                request: asked.request,
                model_version: String::new(),
                connection: ConnectionArguments {
                    url,
                    header,
                    ca_cert: None,
                    client_cert: None,
                    client_key: None,
                },
            });
            log.change(&info(asked.log));
            answer
        }
    };
    runtime.block_on(server.stop(END_GRACE));
    answer
}

/// The repository that a model's folder is in, and the model's name.
fn place(folder: &Path) -> Result<(PathBuf, String), String> {
    let wrong = |why: String| format!("{}: {why}", folder.display());
    // Not what a link leads to: the link is in the repository.
    let mut whole = std::path::absolute(folder).map_err(|error| wrong(error.to_string()))?;
    if whole.file_name().is_none() {
        whole = fs::canonicalize(folder).map_err(|error| wrong(error.to_string()))?;
    }
    if !whole.is_dir() {
        return Err(wrong(
            "expected a model's folder, such as model_repository/add_sub".to_owned(),
        ));
    }
    match (whole.parent(), whole.file_name().and_then(|it| it.to_str())) {
        (Some(repository), Some(name)) => Ok((repository.to_owned(), name.to_owned())),
        _ => Err(wrong("expected a folder whose name is that of a model".to_owned())),
    }
}

/// A server that loads this model and what it needs, and listens where nobody else does.
fn options(asked: &RunOnceArguments, repository: PathBuf, model: &str, url: &str) -> Serve {
    let mut options = Serve {
        model_repository: vec![repository],
        model_control_mode: ControlMode::Explicit,
        load_model: vec![model.to_owned()],
        backend_config: asked.backend_config.clone(),
        provision: asked.provision,
        ..Serve::default()
    };
    options.listeners.allow_http = false;
    options.listeners.allow_metrics = false;
    url.clone_into(&mut options.listeners.grpc_address);
    options.log.log_info = asked.log;
    // Why a model does not load, or fails, is the answer.
    options.log.log_error = asked.log;
    options
}

/// A folder for the socket that others cannot enter, removed in the end.
struct SocketFolder(PathBuf);

impl SocketFolder {
    fn new() -> Result<SocketFolder, String> {
        let path = std::env::temp_dir().join(format!("troupe-run-once-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(SocketFolder(path))
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        // What is left is in a folder for what is left.
        let _ = fs::remove_dir_all(&self.0);
    }
}
