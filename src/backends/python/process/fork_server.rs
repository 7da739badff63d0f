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

use crate::python::process::children::Children;
use crate::python::process::children::Parent;
use crate::python::process::children::SharedWorkers;
use crate::python::process::children::follow;
use crate::python::process::children::listen;
use crate::python::process::children::lose;
use crate::python::process::reaper::reaper;
use crate::python::process::sources::BOOTSTRAP;
use crate::python::process::sources::packed;
use crate::python::process::stdio_log::OutputSource;
use crate::python::process::stdio_log::StderrTail;
use crate::python::protocol::messages::messages_of;
use crate::python::protocol::messages::receive;
use troupe_base::error::{Error, Result};

/// How long a fork server stays after its last model, so that the next load finds it.
const LINGER: Duration = Duration::from_secs(10);
/// How long an interpreter may take to import numpy.
const STARTING: Duration = Duration::from_secs(120);

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
    pub(crate) hello: InterpreterInfo,
    interpreter: PathBuf,
    children: Children,
    child: Mutex<Option<Child>>,
}

/// What is known about an interpreter.
#[derive(Default)]
struct Known {
    host: Weak<ForkServer>,
    /// When it was found to lack numpy: not tried again at once, for every model that is loaded.
    lacking: Option<(Instant, InterpreterInfo)>,
}

type Slot = Arc<Mutex<Known>>;

/// Fork servers by interpreter, found or started by one loading thread while the others wait.
static HOSTS: Mutex<Option<HashMap<PathBuf, Slot>>> = Mutex::new(None);

/// The fork server of an interpreter. Blocks.
pub(crate) fn acquire(interpreter: &Path) -> Result<Arc<ForkServer>, NoForkServer> {
    let slot: Slot = {
        let mut hosts = HOSTS.lock();
        hosts.get_or_insert_default().entry(interpreter.to_owned()).or_default().clone()
    };
    let mut slot = slot.lock();
    if let Some(host) = slot.host.upgrade().filter(|it| !it.children.is_gone()) {
        return Ok(host);
    }
    if let Some((_, hello)) = slot.lacking.as_ref().filter(|it| it.0.elapsed() < LINGER) {
        return Err(NoForkServer::NoNumpy(hello.clone()));
    }
    let path = interpreter.to_owned();
    let started = reaper().wait(async move { start(&path).await }).map_err(NoForkServer::Broken)?;
    if let Err(NoForkServer::NoNumpy(hello)) = &started {
        slot.lacking = Some((Instant::now(), hello.clone()));
    }
    let host = started?;
    *slot = Known { host: Arc::downgrade(&host), lacking: None };
    reaper().adopt(&host);
    reaper().linger(host.clone(), LINGER);
    Ok(host)
}

/// The same fork server, or another of its interpreter if it has ended. Blocks.
pub(crate) fn living(host: Arc<ForkServer>) -> Result<Arc<ForkServer>> {
    if !host.children.is_gone() {
        return Ok(host);
    }
    acquire(&host.interpreter).map_err(|error| match error {
        NoForkServer::Broken(error) => error,
        NoForkServer::NoNumpy(hello) => Error::internal(format!(
            "Python interpreter '{}' lost its numpy: {}",
            host.interpreter.display(),
            hello.error.unwrap_or_default()
        )),
    })
}

/// On the keeper's thread.
async fn start(interpreter: &Path) -> Result<Arc<ForkServer>, NoForkServer> {
    let broken = |error: &dyn std::fmt::Display| {
        NoForkServer::Broken(Error::internal(format!(
            "cannot run Python interpreter '{}': {error}",
            interpreter.display()
        )))
    };
    if reaper().is_closing() {
        return Err(NoForkServer::Broken(Error::unavailable("the server is stopping")));
    }
    let sources = packed().map_err(|error| broken(&error))?;
    let (control, child, tail) = spawn(interpreter).map_err(|error| broken(&error))?;
    reaper().started();
    if let Err(error) = send(&control, &sources, SendFlags::NOSIGNAL)
        // A child that ended at once is noticed below.
        && !matches!(error, Errno::PIPE | Errno::CONNRESET)
    {
        end(Mutex::new(Some(child))).await;
        return Err(broken(&format!("{} bytes of sources were not sent: {error}", sources.len())));
    }
    let messages = messages_of(&control).map_err(|error| broken(&error))?;
    let message = tokio::time::timeout(STARTING, receive(&messages)).await;
    let hello = message
        .ok()
        .flatten()
        .and_then(|it| serde_json::from_slice::<InterpreterInfo>(it.strip_prefix(b"H")?).ok());
    let child = Mutex::new(Some(child));
    let Some(hello) = hello else {
        let status = end(child).await.map_or("it is gone".to_owned(), |it| it.to_string());
        return Err(broken(&format!("{status}; {}", tail.text().await)));
    };
    if hello.error.is_some() {
        reap(&child).await;
        return Err(NoForkServer::NoNumpy(hello));
    }
    let children = Children::new(control);
    let workers = children.workers();
    let host = Arc::new(ForkServer { hello, interpreter: interpreter.to_owned(), children, child });
    reaper().spawn(attend(messages, Arc::downgrade(&host), workers));
    Ok(host)
}

fn spawn(interpreter: &Path) -> std::io::Result<(OwnedFd, Child, StderrTail)> {
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
        pipe.into_iter().for_each(|it| follow(it, source(name)));
    }
    Ok((ours, child, tail))
}

async fn end(child: Mutex<Option<Child>>) -> Option<ExitStatus> {
    if let Some(child) = &mut *child.lock() {
        // It may have ended already.
        let _ = child.kill();
    }
    reap(&child).await
}

/// `None` if somebody else reaps it.
async fn reap(child: &Mutex<Option<Child>>) -> Option<ExitStatus> {
    let mut child = child.lock().take()?;
    let waited = reaper().spawn_blocking(move || child.wait()).await;
    reaper().reaped(1);
    waited.ok()?.ok()
}

/// Follows a fork server to its end.
async fn attend(messages: UnixStream, host: Weak<ForkServer>, workers: SharedWorkers) {
    listen(messages, &workers).await;
    // `None` if the last user has gone; then its drop reaps.
    let status = match host.upgrade() {
        Some(host) => reap(&host.child).await,
        None => None,
    };
    let status = status.map_or("ended".to_owned(), |it| format!("ended ({it})"));
    lose(&workers, &format!("its fork server {status} and took it along"));
}

impl ForkServer {
    /// Has the fork server end its workers, whatever they left behind, and itself.
    pub(crate) fn kill_all(&self) {
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
        reaper().spawn_blocking(move || {
            let mut child = child;
            // It can only fail for a process that is no child of ours.
            let _ = child.wait();
            reaper().reaped(1);
        });
    }
}
