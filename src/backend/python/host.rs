//! A fork server: one interpreter with numpy loaded, which forks a worker in milliseconds.

use std::{
    collections::HashMap,
    io::IoSlice,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    send, sendmsg, socketpair,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use serde::Deserialize;
use tokio::{
    net::{UnixStream, unix::pipe},
    sync::watch,
};

use super::{
    keeper::keeper,
    lines::{self, Source, Tail},
    messages::{messages_of, receive},
    sources::{BOOTSTRAP, SOURCES},
};
use crate::error::{Error, Result};

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

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Exit {
    /// By itself, with a status.
    Status(i64),
    /// By a signal.
    Signal(i64),
    /// With its fork server, which ended so.
    Lost(Option<ExitStatus>),
}

/// A running fork server. Dropping the last `Arc` ends it.
pub(super) struct Host {
    pub(super) hello: Hello,
    interpreter: PathBuf,
    control: OwnedFd,
    child: Mutex<Option<Child>>,
    workers: Arc<Mutex<Workers>>,
    next: AtomicU64,
}

#[derive(Default)]
struct Workers {
    exits: HashMap<u64, watch::Sender<Option<Exit>>>,
    is_gone: bool,
}

/// A worker that was just forked.
pub(super) struct Forked {
    /// Names it to the fork server.
    pub(super) number: u64,
    /// Frames.
    pub(super) stream: OwnedFd,
    /// Descriptors of segments.
    pub(super) passing: OwnedFd,
    /// Set once it is reaped.
    pub(super) exit: watch::Receiver<Option<Exit>>,
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
    if let Some(host) = slot.host.upgrade().filter(|it| !it.workers.lock().is_gone) {
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
    if !host.workers.lock().is_gone {
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

/// On the keeper's thread: the process must not outlive the thread that started it.
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
    let sources = serde_json::to_vec(&HashMap::from(SOURCES)).map_err(|error| broken(&error))?;
    let (control, child, tail) = spawn(interpreter).map_err(|error| broken(&error))?;
    keeper().born();
    // A child that ended at once is noticed below.
    let _ = send(&control, &sources, SendFlags::NOSIGNAL);
    let messages = messages_of(&control).map_err(|error| broken(&error))?;
    let message = tokio::time::timeout(STARTING, receive(&messages)).await;
    let hello = message
        .ok()
        .flatten()
        .and_then(|it| serde_json::from_slice::<Hello>(it.strip_prefix(b"H")?).ok());
    let child = Mutex::new(Some(child));
    let Some(hello) = hello else {
        if let Some(child) = &mut *child.lock() {
            // It may have ended already.
            let _ = child.kill();
        }
        let status = reap(&child).await.map_or("it is gone".to_owned(), |it| it.to_string());
        tokio::time::sleep(Duration::from_millis(5)).await;
        return Err(broken(&format!("{status}; {}", tail.text())));
    };
    if hello.error.is_some() {
        reap(&child).await;
        return Err(NoHost::NoNumpy(hello));
    }
    let workers: Arc<Mutex<Workers>> = Arc::default();
    let next = AtomicU64::new(1);
    let interpreter = interpreter.to_owned();
    let host = Host { hello, interpreter, control, child, workers: workers.clone(), next };
    let host = Arc::new(host);
    keeper().spawn(listen(messages, Arc::downgrade(&host), workers));
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

/// `None` if somebody else reaps it.
async fn reap(child: &Mutex<Option<Child>>) -> Option<ExitStatus> {
    let mut child = child.lock().take()?;
    let waited = keeper().spawn_blocking(move || child.wait()).await;
    keeper().gone(1);
    waited.ok()?.ok()
}

/// Tells the ends of workers until the fork server ends.
async fn listen(messages: UnixStream, host: Weak<Host>, workers: Arc<Mutex<Workers>>) {
    while let Some(message) = receive(&messages).await {
        let number = |at: usize| {
            let bytes = message.get(at..at + 8)?;
            bytes.try_into().ok().map(i64::from_le_bytes)
        };
        let (Some(b'X'), Some(worker), Some(status)) = (message.first(), number(1), number(17))
        else {
            continue;
        };
        let sender = workers.lock().exits.remove(&(worker as u64));
        if let Some(sender) = sender {
            let exit = match status & 0x7f {
                0 => Exit::Status(status >> 8 & 0xff),
                signal => Exit::Signal(signal),
            };
            sender.send_replace(Some(exit));
            keeper().gone(1);
        }
    }
    workers.lock().is_gone = true;
    // `None` if the last user has gone; then its drop reaps.
    let status = match host.upgrade() {
        Some(host) => reap(&host.child).await,
        None => None,
    };
    let exits = std::mem::take(&mut workers.lock().exits);
    keeper().gone(exits.len());
    for sender in exits.into_values() {
        sender.send_replace(Some(Exit::Lost(status)));
    }
}

/// Logs what comes out of a pipe, on the keeper's thread.
fn follow(pipe: OwnedFd, source: Source) {
    keeper().spawn(async move {
        if let Ok(receiver) = pipe::Receiver::from_owned_fd(pipe) {
            lines::follow(receiver, source).await;
        }
    });
}

impl Host {
    /// Forks a worker whose output is logged as `model`'s. Blocks for a moment.
    pub(super) fn fork(&self, model: &Arc<str>, instance: &Arc<str>) -> Result<(Forked, Tail)> {
        let failed = |error: Errno| {
            Error::internal(format!("cannot start a worker for '{instance}': {error}"))
        };
        if keeper().is_closing() {
            return Err(Error::unavailable("the server is stopping"));
        }
        let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (stream, their_stream) = pair(SocketType::STREAM).map_err(failed)?;
        let (passing, their_passing) = pair(SocketType::SEQPACKET).map_err(failed)?;
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed);
        let ((stdout, their_stdout), (stderr, their_stderr)) = (pipe()?, pipe()?);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, exit) = watch::channel(None);
        {
            let mut workers = self.workers.lock();
            if workers.is_gone {
                return Err(Error::unavailable("the interpreter's fork server has ended"));
            }
            workers.exits.insert(number, sender);
            keeper().born();
        }
        let fds = [&their_stream, &their_passing, &their_stdout, &their_stderr].map(AsFd::as_fd);
        if let Err(error) = self.send(&order(b'S', number), &fds) {
            if self.workers.lock().exits.remove(&number).is_some() {
                keeper().gone(1);
            }
            return Err(failed(error));
        }
        let tail = Tail::default();
        let source = |stream, tail| Source {
            model: model.clone(),
            instance: instance.clone(),
            stream,
            tail,
        };
        follow(stdout, source("stdout", Tail::default()));
        follow(stderr, source("stderr", tail.clone()));
        Ok((Forked { number, stream, passing, exit }, tail))
    }

    /// Waits while the fork server is behind.
    fn send(&self, order: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(fds));
            }
            let order = [IoSlice::new(order)];
            match sendmsg(&self.control, &order, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) => {
                    let mut ready = [PollFd::new(&self.control, PollFlags::OUT)];
                    // Whatever it says, the next attempt finds out.
                    let _ = poll(&mut ready, None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a worker at once. The fork server has not reaped it, so it cannot hit another process.
    pub(super) fn kill(&self, number: u64) {
        // A fork server that has ended took its workers along.
        let _ = self.send(&order(b'K', number), &[]);
    }

    /// Ends the fork server at once, and with it its workers.
    pub(super) fn kill_all(&self) {
        let numbers: Vec<u64> = self.workers.lock().exits.keys().copied().collect();
        for number in numbers {
            self.kill(number);
        }
        if let Some(child) = &mut *self.child.lock() {
            // It may have ended already.
            let _ = child.kill();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(child) = self.child.lock().take() else { return };
        // The listening task holds the socket too: only a shutdown ends the fork server's loop.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        keeper().spawn_blocking(move || {
            let mut child = child;
            // It can only fail for a process that is no child of ours.
            let _ = child.wait();
            keeper().gone(1);
        });
    }
}

fn order(kind: u8, number: u64) -> [u8; 9] {
    let mut order = [kind; 9];
    order[1..].copy_from_slice(&number.to_le_bytes());
    order
}
