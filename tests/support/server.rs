//! The real binary, started on a repository; its log, its listeners and its end.

use std::{
    collections::VecDeque,
    env,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use super::{Answer, Http, Repository, eventually, http::floats, process, until, venv};

/// Older lines are forgotten: some tests print a lot.
const KEPT_LINES: usize = 50_000;

/// A running server; killed when dropped, and also when this process ends in any other way.
pub(crate) struct Server {
    pub(crate) http: Http,
    pub(crate) metrics: Http,
    pub(crate) grpc: SocketAddr,
    pub(crate) pid: u32,
    pub(crate) repository: Repository,
    log: Log,
    child: Mutex<Child>,
    /// Kills the server when its input closes.
    watchdog: Child,
}

/// How a run of the binary ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
}

/// What comes out of both streams, and of the file in `--log-file` if there is one.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<VecDeque<String>>>, Option<PathBuf>, Arc<AtomicBool>);

impl Server {
    /// Serves a repository, and waits until it is ready.
    pub(crate) fn start(repository: Repository) -> Server {
        Server::with(repository, &[])
    }

    /// Loads nothing before it is asked to.
    pub(crate) fn explicit(repository: Repository) -> Server {
        Server::with(repository, &["--model-control-mode=explicit"])
    }

    /// Some models may fail to load: waits until every one was tried.
    pub(crate) fn lenient(repository: Repository) -> Server {
        Server::with(repository, &["--exit-on-error=false"])
    }

    /// Serves with more flags.
    pub(crate) fn with(repository: Repository, flags: &[&str]) -> Server {
        let server = Server::launch(repository, flags, &[]);
        if flags.contains(&"--exit-on-error=false") {
            server.tried_all();
        } else {
            server.ready();
        }
        server
    }

    /// Serves with more flags and variables; waits for its listeners only.
    pub(crate) fn launch(repository: Repository, flags: &[&str], envs: &[(&str, &Path)]) -> Server {
        let mut command = command(&repository, flags);
        let mut child = command.envs(envs.iter().copied()).spawn().unwrap();
        let pid = child.id();
        let file = flags.iter().find_map(|it| it.strip_prefix("--log-file="));
        let log = Log(Arc::default(), file.map(|it| repository.beside(it)), Arc::default());
        log.follow(child.stdout.take().unwrap());
        log.follow(child.stderr.take().unwrap());
        let watchdog = Command::new("sh")
            .args(["-c", r#"read -r _; kill -KILL "$1"; rm -rf -- "$2""#, "watchdog"])
            .args([pid.to_string().as_ref(), repository.beside("").as_os_str()])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut address_of = |name: &str| {
            eventually(&format!("{name} in the log:\n{}", log.text()), || {
                let ended = child.try_wait().unwrap();
                assert!(ended.is_none(), "the server ended with {ended:?}:\n{}", log.text());
                log.address(&format!("Started {name} at "))
            })
        };
        let grpc = address_of("GRPCInferenceService");
        let http = Http(address_of("HTTPService"));
        let metrics = Http(address_of("Metrics Service"));
        let child = Mutex::new(child);
        Server { http, metrics, grpc, pid, repository, log, child, watchdog }
    }

    /// A start that is expected to fail.
    pub(crate) fn fails(repository: &Repository, flags: &[&str]) -> Ended {
        ended(&mut command(repository, flags))
    }

    /// Waits until it is ready.
    pub(crate) fn ready(&self) {
        self.comes_to("be ready", || self.http.get("/v2/health/ready").status == 200);
    }

    /// Waits until no model is being loaded.
    pub(crate) fn tried_all(&self) {
        self.comes_to("have tried to load all models", || {
            let answer = self.http.post("/v2/repository/index", "");
            let is_done = |it: &Value| !matches!(it["state"].as_str(), Some("LOADING" | "UNKNOWN"));
            answer.status == 200
                && self.http.get("/v2/health/live").status == 200
                && answer.json().as_array().unwrap().iter().all(is_done)
        });
    }

    fn comes_to(&self, what: &str, mut holds: impl FnMut() -> bool) {
        until(&format!("the server to {what}"), || {
            let ended = self.child.lock().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the server ended with {ended:?}:\n{}", self.log());
            holds()
        });
    }

    /// Asks a model for an inference.
    pub(crate) fn infer(&self, model: &str, request: &Value) -> Answer {
        self.http.infer(model, request)
    }

    /// Loads or reloads a model.
    pub(crate) fn load(&self, model: &str) -> Answer {
        self.http.post(&format!("/v2/repository/models/{model}/load"), "")
    }

    /// Unloads a model.
    pub(crate) fn unload(&self, model: &str) -> Answer {
        self.http.post(&format!("/v2/repository/models/{model}/unload"), "")
    }

    /// `READY`, or another state with its reason behind it.
    pub(crate) fn state(&self, model: &str) -> String {
        let index = self.http.post("/v2/repository/index", "").ok().json();
        let found = index.as_array().unwrap().iter().find(|it| it["name"] == model);
        let Some(found) = found else { return "not in the index".to_owned() };
        let part = |key: &str| found.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
        let (state, reason) = (part("state"), part("reason"));
        if reason.is_empty() { state } else { format!("{state}: {reason}") }
    }

    /// The statistics of a model with one version.
    pub(crate) fn stats(&self, model: &str) -> Value {
        let answer = self.http.get(&format!("/v2/models/{model}/stats"));
        answer.ok().json()["model_stats"][0].take()
    }

    /// How often a model was executed.
    pub(crate) fn executions(&self, model: &str) -> u64 {
        self.stats(model)["execution_count"].as_u64().unwrap()
    }

    /// How many requests a model answered well.
    pub(crate) fn successes(&self, model: &str) -> u64 {
        self.stats(model)["inference_stats"]["success"]["count"].as_u64().unwrap()
    }

    /// One value of the metrics, by name and labels that its line holds.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let text = self.metrics.get("/metrics").ok().text();
        let mut lines = text.lines().filter(|it| it.starts_with(&format!("{name}{{")));
        let line = lines.find(|it| labels.iter().all(|label| it.contains(label)))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    /// Waits for a line of the log that holds this.
    pub(crate) fn logged(&self, text: &str) -> String {
        eventually(&format!("`{text}` in the log"), || self.log.line(text))
    }

    /// Whether anybody reads what it logs.
    pub(crate) fn reads_log(&self, reads: bool) {
        self.log.2.store(!reads, SeqCst);
    }

    /// A line of the log so far that holds this.
    pub(crate) fn has_logged(&self, text: &str) -> Option<String> {
        self.log.line(text)
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        process::signal(self.pid, signal);
    }

    /// Waits for its end.
    pub(crate) fn end(&self) -> ExitStatus {
        eventually("the server's end", || self.child.lock().unwrap().try_wait().unwrap())
    }

    /// Ready, and nothing in it has panicked.
    #[track_caller]
    pub(crate) fn is_well(&self) {
        assert_eq!(self.http.get("/v2/health/ready").status, 200, "{}", self.log());
        assert_eq!(self.log.line("panicked at"), None);
    }

    /// Live, nothing in it has panicked, and `m`, which gives FP32 `x` back as `y`, answers right.
    #[track_caller]
    pub(crate) fn still_serves(&self, after: &str) {
        let live = self.http.get("/v2/health/live").status;
        assert_eq!(live, 200, "after {after}: {}", self.log());
        assert_eq!(self.log.line("panicked at"), None, "after {after}");
        let answer = self.infer("m", &floats(&[("x", &[1.0, 2.0])]));
        assert_eq!(answer.numbers("y"), [1.0, 2.0], "after {after}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        let child = self.child.get_mut().unwrap_or_else(|it| it.into_inner());
        let _ = child.kill();
        let _ = child.wait();
        if thread::panicking() {
            println!("the log of the server:\n{}", self.log.text());
        }
    }
}

/// A subcommand of the binary: `troupe check …`.
pub(crate) fn troupe(arguments: &[&str]) -> Ended {
    ended(Command::new(env!("CARGO_BIN_EXE_troupe")).args(arguments))
}

fn ended(command: &mut Command) -> Ended {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let both = [output.stdout, output.stderr].concat();
    Ended { code: output.status.code(), output: String::from_utf8_lossy(&both).into_owned() }
}

fn command(repository: &Repository, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_troupe"));
    let own = |flag: &str| flags.iter().any(|it| it.starts_with(flag));
    for (flag, value) in [
        ("--http-port", "0"),
        ("--grpc-port", "0"),
        ("--metrics-port", "0"),
        ("--http-address", "127.0.0.1"),
        ("--grpc-address", "127.0.0.1"),
    ] {
        if !own(flag) {
            command.arg(format!("{flag}={value}"));
        }
    }
    if let Ok(threads) = env::var("ENGINE_THREADS")
        && !own("--http-thread-count")
        && !own("--engine-thread-count")
    {
        command.arg(format!("--engine-thread-count={threads}"));
    }
    if repository.needs_python() && !own("--backend-config=python,python") {
        command.arg(format!("--backend-config=python,python={}", venv::python().display()));
    }
    if repository.needs_onnxruntime() {
        command.env("ORT_DYLIB_PATH", venv::onnxruntime());
    }
    command.arg(format!("--model-repository={}", repository.models().display()));
    command.args(flags).current_dir(repository.beside(""));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Log {
    fn follow(&self, from: impl Read + Send + 'static) {
        let (log, is_paused) = (self.0.clone(), self.2.clone());
        thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while from.read_until(b'\n', &mut line).is_ok_and(|it| it != 0) {
                let mut log = log.lock().unwrap();
                if log.len() == KEPT_LINES {
                    log.pop_front();
                }
                log.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
                drop(log);
                while is_paused.load(SeqCst) {
                    thread::park_timeout(Duration::from_millis(2));
                }
            }
        });
    }

    fn text(&self) -> String {
        let text: String = self.0.lock().unwrap().iter().map(|it| format!("{it}\n")).collect();
        text + &self.file()
    }

    fn line(&self, text: &str) -> Option<String> {
        let found = self.0.lock().unwrap().iter().find(|it| it.contains(text)).cloned();
        found.or_else(|| self.file().lines().find(|it| it.contains(text)).map(str::to_owned))
    }

    fn file(&self) -> String {
        let text = self.1.as_ref().and_then(|it| std::fs::read_to_string(it).ok());
        text.unwrap_or_default()
    }

    fn address(&self, after: &str) -> Option<SocketAddr> {
        let line = self.line(after)?;
        let address = line.split_once(after)?.1.split([' ', '"']).next()?;
        match address.starts_with("unix:") {
            // Tests that use these know the path; nobody listens at this port.
            true => Some(SocketAddr::from(([127, 0, 0, 1], 1))),
            false => address.parse().ok(),
        }
    }
}
