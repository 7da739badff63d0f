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
    forks::{Forks, Parent, Workers, follow, listen, lose},
    keeper::keeper,
    lines::{Source, Tail},
    messages::{messages_of, receive},
    sources::{BOOTSTRAP, packed},
};
use troupe_base::error::{Error, Result};

/// How long a fork server stays after its last model, so that the next load finds it.
const LINGER: Duration = Duration::from_secs(10);
/// How long an interpreter may take to import numpy.
const STARTING: Duration = Duration::from_secs(120);

/// What an interpreter says about itself.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Hello {
    /// `sys.version`.
    pub(super) version: String,
    /// `sys.prefix`.
    pub(super) prefix: String,
    /// `sys.executable`.
    pub(super) executable: String,
    /// Why numpy cannot be imported.
    pub(super) error: Option<String>,
}

/// Why there is no fork server.
#[derive(Clone, Debug)]
pub(super) enum NoHost {
    /// The interpreter works, but cannot import numpy.
    NoNumpy(Hello),
    /// There is no working interpreter.
    Broken(Error),
}

/// A running fork server. Dropping the last `Arc` ends it.
pub(super) struct Host {
    pub(super) hello: Hello,
    interpreter: PathBuf,
    forks: Forks,
    child: Mutex<Option<Child>>,
}

/// What is known about an interpreter.
#[derive(Default)]
struct Known {
    host: Weak<Host>,
    /// When it was found to lack numpy: not tried again at once, for every model that is loaded.
    lacking: Option<(Instant, Hello)>,
}

type Slot = Arc<Mutex<Known>>;

/// Fork servers by interpreter, found or started by one loading thread while the others wait.
static HOSTS: Mutex<Option<HashMap<PathBuf, Slot>>> = Mutex::new(None);

/// The fork server of an interpreter. Blocks.
pub(super) fn acquire(interpreter: &Path) -> Result<Arc<Host>, NoHost> {
    let slot: Slot = {
        let mut hosts = HOSTS.lock();
        hosts.get_or_insert_default().entry(interpreter.to_owned()).or_default().clone()
    };
    let mut slot = slot.lock();
    if let Some(host) = slot.host.upgrade().filter(|it| !it.forks.is_gone()) {
        return Ok(host);
    }
    if let Some((_, hello)) = slot.lacking.as_ref().filter(|it| it.0.elapsed() < LINGER) {
        return Err(NoHost::NoNumpy(hello.clone()));
    }
    let path = interpreter.to_owned();
    let started = keeper().wait(async move { start(&path).await }).map_err(NoHost::Broken)?;
    if let Err(NoHost::NoNumpy(hello)) = &started {
        slot.lacking = Some((Instant::now(), hello.clone()));
    }
    let host = started?;
    *slot = Known { host: Arc::downgrade(&host), lacking: None };
    keeper().adopt(&host);
    keeper().linger(host.clone(), LINGER);
    Ok(host)
}

/// The same fork server, or another of its interpreter if it has ended. Blocks.
pub(super) fn living(host: Arc<Host>) -> Result<Arc<Host>> {
    if !host.forks.is_gone() {
        return Ok(host);
    }
    acquire(&host.interpreter).map_err(|error| match error {
        NoHost::Broken(error) => error,
        NoHost::NoNumpy(hello) => Error::internal(format!(
            "Python interpreter '{}' lost its numpy: {}",
            host.interpreter.display(),
            hello.error.unwrap_or_default()
        )),
    })
}

/// On the keeper's thread.
async fn start(interpreter: &Path) -> Result<Arc<Host>, NoHost> {
    let broken = |error: &dyn std::fmt::Display| {
        NoHost::Broken(Error::internal(format!(
            "cannot run Python interpreter '{}': {error}",
            interpreter.display()
        )))
    };
    if keeper().is_closing() {
        return Err(NoHost::Broken(Error::unavailable("the server is stopping")));
    }
    let sources = packed().map_err(|error| broken(&error))?;
    let (control, child, tail) = spawn(interpreter).map_err(|error| broken(&error))?;
    keeper().born();
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
        .and_then(|it| serde_json::from_slice::<Hello>(it.strip_prefix(b"H")?).ok());
    let child = Mutex::new(Some(child));
    let Some(hello) = hello else {
        let status = end(child).await.map_or("it is gone".to_owned(), |it| it.to_string());
        return Err(broken(&format!("{status}; {}", tail.text().await)));
    };
    if hello.error.is_some() {
        reap(&child).await;
        return Err(NoHost::NoNumpy(hello));
    }
    let forks = Forks::new(control);
    let workers = forks.workers();
    let host = Arc::new(Host { hello, interpreter: interpreter.to_owned(), forks, child });
    keeper().spawn(attend(messages, Arc::downgrade(&host), workers));
    Ok(host)
}

fn spawn(interpreter: &Path) -> std::io::Result<(OwnedFd, Child, Tail)> {
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
    let tail = Tail::default();
    let source =
        |stream| Source { model: "".into(), instance: "".into(), stream, tail: tail.clone() };
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
    let waited = keeper().spawn_blocking(move || child.wait()).await;
    keeper().gone(1);
    waited.ok()?.ok()
}

/// Follows a fork server to its end.
async fn attend(messages: UnixStream, host: Weak<Host>, workers: Workers) {
    listen(messages, &workers).await;
    // `None` if the last user has gone; then its drop reaps.
    let status = match host.upgrade() {
        Some(host) => reap(&host.child).await,
        None => None,
    };
    let status = status.map_or("ended".to_owned(), |it| format!("ended ({it})"));
    lose(&workers, &format!("its fork server {status} and took it along"));
}

impl Host {
    /// Has the fork server end its workers, whatever they left behind, and itself.
    pub(super) fn kill_all(&self) {
        self.forks.close();
    }
}

impl Parent for Host {
    fn forks(&self) -> &Forks {
        &self.forks
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(child) = self.child.lock().take() else { return };
        self.forks.close();
        keeper().spawn_blocking(move || {
            let mut child = child;
            // It can only fail for a process that is no child of ours.
            let _ = child.wait();
            keeper().gone(1);
        });
    }
}
