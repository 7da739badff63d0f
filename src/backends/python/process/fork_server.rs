//! A fork server: one interpreter with numpy loaded, which forks a worker in milliseconds.

use std::{
    collections::HashMap,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair},
};
use serde::Deserialize;
use tokio::net::UnixStream;

use super::{
    children::{Children, LivingWorkers, Parent, follow},
    launch_spec::{LaunchError, ParentSource},
    reaper::{ProcessTree, Reaper},
    sources::{BOOTSTRAP, packed},
    stdio_log::{OutputSource, StderrTail},
};
use crate::python::protocol::messages::{messages_of, receive};
use troupe_base::error::{Error, Result};

/// How long a fork server stays after its last model, so that the next load finds it.
const LINGER_TIME: Duration = Duration::from_secs(10);
/// How long an interpreter may take to import numpy.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// What an interpreter says about itself.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct InterpreterInfo {
    /// `sys.version`.
    pub(crate) version: String,
    /// `sys.prefix`.
    pub(crate) prefix: String,
    /// `sys.executable`.
    pub(crate) executable: String,
    /// Why numpy cannot be imported.
    pub(crate) error: Option<String>,
}

/// Why there is no fork server.
#[derive(Clone, Debug)]
pub(crate) enum NoForkServer {
    /// The interpreter works, but cannot import numpy.
    NoNumpy(InterpreterInfo),
    /// There is no working interpreter.
    Broken(Error),
}

/// A running fork server. Dropping the last `Arc` ends it.
pub(crate) struct ForkServer {
    pub(crate) info: InterpreterInfo,
    interpreter: PathBuf,
    /// Where another one of its interpreter is found once it has ended.
    servers: Arc<ForkServers>,
    children: Children,
    child: Mutex<Option<Child>>,
}

/// What is known about an interpreter.
#[derive(Default)]
struct KnownInterpreter {
    server: Weak<ForkServer>,
    /// When it was found to lack numpy: not tried again at once, for every model that is loaded.
    lacking: Option<(Instant, InterpreterInfo)>,
}

type Slot = Arc<Mutex<KnownInterpreter>>;

/// The fork servers of one server, by interpreter: found or started by one loading thread while the
/// others wait.
pub(crate) struct ForkServers {
    pub(crate) reaper: Arc<Reaper>,
    by_interpreter: Mutex<HashMap<PathBuf, Slot>>,
}

impl ForkServers {
    /// None yet.
    pub(crate) fn new(reaper: Arc<Reaper>) -> Arc<ForkServers> {
        Arc::new(ForkServers { reaper, by_interpreter: Mutex::default() })
    }

    /// The fork server of an interpreter. Blocks.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        interpreter: &Path,
    ) -> Result<Arc<ForkServer>, NoForkServer> {
        let slot: Slot = {
            let mut slots = self.by_interpreter.lock();
            slots.entry(interpreter.to_owned()).or_default().clone()
        };
        let mut slot = slot.lock();
        let running = slot.server.upgrade();
        if let Some(server) = running.filter(|server| !server.children.is_gone()) {
            return Ok(server);
        }
        if let Some((_, info)) = slot.lacking.as_ref().filter(|it| it.0.elapsed() < LINGER_TIME) {
            return Err(NoForkServer::NoNumpy(info.clone()));
        }
        let (path, servers) = (interpreter.to_owned(), self.clone());
        let started = self.reaper.wait(async move { start(&path, servers).await });
        let started = started.map_err(NoForkServer::Broken)?;
        if let Err(NoForkServer::NoNumpy(info)) = &started {
            slot.lacking = Some((Instant::now(), info.clone()));
        }
        let server = started?;
        *slot = KnownInterpreter { server: Arc::downgrade(&server), lacking: None };
        let tree: Arc<dyn ProcessTree> = server.clone();
        self.reaper.remember(Arc::downgrade(&tree));
        self.reaper.linger(server.clone(), LINGER_TIME);
        Ok(server)
    }
}

/// The fork server of an interpreter; another one after it has ended.
pub(crate) struct Interpreter(Mutex<Arc<ForkServer>>);

impl Interpreter {
    /// Begins with this one.
    pub(crate) fn new(server: Arc<ForkServer>) -> Interpreter {
        Interpreter(Mutex::new(server))
    }
}

impl ParentSource for Interpreter {
    fn running(&self) -> Result<Arc<dyn Parent>, LaunchError> {
        let last = self.0.lock().clone();
        let running = running(last)?;
        *self.0.lock() = running.clone();
        Ok(running)
    }
}

/// The same fork server, or another of its interpreter if it has ended. Blocks.
fn running(server: Arc<ForkServer>) -> Result<Arc<ForkServer>> {
    if !server.children.is_gone() {
        return Ok(server);
    }
    server.servers.acquire(&server.interpreter).map_err(|error| match error {
        NoForkServer::Broken(error) => error,
        NoForkServer::NoNumpy(info) => Error::internal(format!(
            "Python interpreter '{}' lost its numpy: {}",
            server.interpreter.display(),
            info.error.unwrap_or_default()
        )),
    })
}

/// Runs on the reaper's thread.
async fn start(
    interpreter: &Path,
    servers: Arc<ForkServers>,
) -> Result<Arc<ForkServer>, NoForkServer> {
    let broken = |error: &dyn std::fmt::Display| {
        NoForkServer::Broken(Error::internal(format!(
            "cannot run Python interpreter '{}': {error}",
            interpreter.display()
        )))
    };
    let reaper = servers.reaper.clone();
    if reaper.is_closing() {
        return Err(NoForkServer::Broken(Error::unavailable("the server is stopping")));
    }
    let sources = packed().map_err(|error| broken(&error))?;
    let (control, child, tail) = spawn(interpreter, &reaper).map_err(|error| broken(&error))?;
    reaper.started();
    if let Err(error) = send(&control, &sources, SendFlags::NOSIGNAL)
        // A child that ended at once is noticed below.
        && !matches!(error, Errno::PIPE | Errno::CONNRESET)
    {
        end(&reaper, Mutex::new(Some(child))).await;
        return Err(broken(&format!("{} bytes of sources were not sent: {error}", sources.len())));
    }
    let messages = messages_of(&control).map_err(|error| broken(&error))?;
    let message = tokio::time::timeout(START_TIMEOUT, receive(&messages)).await;
    let info = message
        .ok()
        .flatten()
        .and_then(|it| serde_json::from_slice::<InterpreterInfo>(it.strip_prefix(b"H")?).ok());
    let child = Mutex::new(Some(child));
    let Some(info) = info else {
        let status = end(&reaper, child).await.map_or("it is gone".to_owned(), |it| it.to_string());
        return Err(broken(&format!("{status}; {}", tail.text().await)));
    };
    if info.error.is_some() {
        reap(&reaper, &child).await;
        return Err(NoForkServer::NoNumpy(info));
    }
    let children = Children::new(control, reaper.clone());
    let living = children.living();
    let interpreter = interpreter.to_owned();
    let server = Arc::new(ForkServer { info, interpreter, servers, children, child });
    reaper.spawn(attend(messages, Arc::downgrade(&server), living));
    Ok(server)
}

fn spawn(
    interpreter: &Path,
    reaper: &Arc<Reaper>,
) -> std::io::Result<(OwnedFd, Child, StderrTail)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The server does without huge pages; large arrays of models are the faster for them.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    let child = Command::new(interpreter)
        .args(["-u", "-c", BOOTSTRAP])
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C in a terminal is for the server, which lets its workers finish.
        .process_group(0)
        .spawn();
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let mut child = child?;
    let tail = StderrTail::default();
    let source =
        |stream| OutputSource { model: "".into(), instance: "".into(), stream, tail: tail.clone() };
    let pipes = [child.stderr.take().map(OwnedFd::from), child.stdout.take().map(OwnedFd::from)];
    for (pipe, name) in pipes.into_iter().zip(["stderr", "stdout"]) {
        pipe.into_iter().for_each(|it| follow(reaper, it, source(name)));
    }
    Ok((ours, child, tail))
}

async fn end(reaper: &Reaper, child: Mutex<Option<Child>>) -> Option<ExitStatus> {
    if let Some(child) = &mut *child.lock() {
        // It may have ended already.
        let _ = child.kill();
    }
    reap(reaper, &child).await
}

/// `None` if somebody else reaps it.
async fn reap(reaper: &Reaper, child: &Mutex<Option<Child>>) -> Option<ExitStatus> {
    let mut child = child.lock().take()?;
    let waited = reaper.spawn_blocking(move || child.wait()).await;
    reaper.reaped(1);
    waited.ok()?.ok()
}

/// Follows a fork server to its end.
async fn attend(messages: UnixStream, server: Weak<ForkServer>, living: Arc<LivingWorkers>) {
    living.listen(messages).await;
    // `None` if the last user has gone; then its drop reaps.
    let status = match server.upgrade() {
        Some(server) => reap(&server.servers.reaper, &server.child).await,
        None => None,
    };
    let status = status.map_or("ended".to_owned(), |it| format!("ended ({it})"));
    living.lose_all(&format!("its fork server {status} and took it along"));
}

impl ProcessTree for ForkServer {
    /// Has it end its workers, whatever they left behind, and itself.
    fn kill_all(&self) {
        self.children.close();
    }
}

impl Parent for ForkServer {
    fn children(&self) -> &Children {
        &self.children
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        let Some(child) = self.child.lock().take() else { return };
        self.children.close();
        let reaper = self.servers.reaper.clone();
        self.servers.reaper.spawn_blocking(move || {
            let mut child = child;
            // It can only fail for a process that is no child of ours.
            let _ = child.wait();
            reaper.reaped(1);
        });
    }
}
