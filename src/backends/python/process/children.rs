//! Child processes of a parent that forks on order: workers, or the instances of a preloaded model.

use std::{
    collections::HashMap,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    },
};
use tokio::{
    net::{UnixStream, unix::pipe},
    sync::watch,
};

use super::{
    progress::Progress,
    reaper::Reaper,
    stdio_log::{self, OutputSource, StderrTail},
};
use crate::python::protocol::messages::receive;
use troupe_base::error::{Error, Result};

/// Orders; `children.py` has the same.
const SPAWN: u8 = b'S';
const KILL: u8 = b'K';
const ABORT: u8 = b'A';
/// What it tells of a worker's begin and end.
const SPAWNED: u8 = b'P';
const EXITED: u8 = b'X';

/// How a process ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Exit {
    /// By itself, with a status.
    Status(i64),
    /// By a signal.
    Signal(i64),
    /// With its parent, which ended in this way.
    Lost(Arc<str>),
}

/// Something that forks workers. It lives as long as they do.
pub(crate) trait Parent: Send + Sync {
    /// Its children.
    fn children(&self) -> &Children;
}

/// The server's end of a parent's control socket, and who lives.
pub(crate) struct Children {
    control: OwnedFd,
    living: Arc<LivingWorkers>,
    next: AtomicU64,
}

/// The workers of a parent that were not reaped; shared with the task that hears of their ends.
pub(crate) struct LivingWorkers {
    state: Mutex<LivingState>,
    reaper: Arc<Reaper>,
}

#[derive(Default)]
struct LivingState {
    /// By number.
    workers: HashMap<u64, LivingWorker>,
    /// The parent has ended.
    is_gone: bool,
}

/// A worker that was not reaped.
struct LivingWorker {
    /// Who waits for its exit.
    exit: watch::Sender<Option<Exit>>,
    /// Of its process, once its parent has told it.
    pid: Option<i64>,
}

/// A worker that was just forked.
pub(crate) struct Forked {
    /// Names it to its parent.
    pub(crate) number: u64,
    /// Frames.
    pub(crate) stream: OwnedFd,
    /// Descriptors of segments.
    pub(crate) passing: OwnedFd,
    /// Which groups it has begun.
    pub(crate) progress: Progress,
    /// Set once it is reaped.
    pub(crate) exit: watch::Receiver<Option<Exit>>,
    /// The last lines on its stderr.
    pub(crate) tail: StderrTail,
}

impl Children {
    /// Children of whoever reads the other end of `control`.
    pub(crate) fn new(control: OwnedFd, reaper: Arc<Reaper>) -> Children {
        let living = Arc::new(LivingWorkers { state: Mutex::default(), reaper });
        Children { control, living, next: AtomicU64::new(1) }
    }

    /// Those that were not reaped, for whoever listens to their parent.
    pub(crate) fn living(&self) -> Arc<LivingWorkers> {
        self.living.clone()
    }

    /// What counts and logs them.
    pub(crate) fn reaper(&self) -> &Arc<Reaper> {
        &self.living.reaper
    }

    /// For `messages_of`.
    pub(crate) fn control(&self) -> &OwnedFd {
        &self.control
    }

    /// Has the parent ended?
    pub(crate) fn is_gone(&self) -> bool {
        self.living.state.lock().is_gone
    }

    /// Forks a worker whose output is logged as `model`'s. Blocks for a moment.
    pub(crate) fn fork(&self, model: &Arc<str>, instance: &Arc<str>) -> Result<Forked> {
        let failed = |error: io::Error| {
            Error::internal(format!("cannot start a worker for '{instance}': {error}"))
        };
        let reaper = self.reaper();
        if reaper.is_closing() {
            return Err(Error::unavailable("the server is stopping"));
        }
        let refused = |error: Errno| failed(error.into());
        let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (stream, their_stream) = pair(SocketType::STREAM).map_err(refused)?;
        let (passing, their_passing) = pair(SocketType::SEQPACKET).map_err(refused)?;
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(refused);
        let ((stdout, their_stdout), (stderr, their_stderr)) = (pipe()?, pipe()?);
        let (progress, their_progress) = Progress::new().map_err(failed)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, exit) = watch::channel(None);
        {
            let mut living = self.living.state.lock();
            if living.is_gone {
                return Err(Error::unavailable("the process that forks workers has ended"));
            }
            living.workers.insert(number, LivingWorker { exit: sender, pid: None });
            reaper.started();
        }
        let theirs = [their_stream, their_passing, their_stdout, their_stderr, their_progress];
        let fds = theirs.each_ref().map(AsFd::as_fd);
        if let Err(error) = self.send(&order(SPAWN, number), &fds) {
            if self.living.state.lock().workers.remove(&number).is_some() {
                reaper.reaped(1);
            }
            return Err(refused(error));
        }
        let tail = StderrTail::default();
        let source = |stream, tail| OutputSource {
            model: model.clone(),
            instance: instance.clone(),
            stream,
            tail,
        };
        follow(reaper, stdout, source("stdout", StderrTail::default()));
        follow(reaper, stderr, source("stderr", tail.clone()));
        Ok(Forked { number, stream, passing, progress, exit, tail })
    }

    /// Waits while the parent is behind.
    fn send(&self, order: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
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

    /// Ends a worker at once. Its parent has not reaped it, so it cannot hit another process.
    pub(crate) fn kill(&self, number: u64) {
        // A parent that has ended took its workers along.
        let _ = self.send(&order(KILL, number), &[]);
    }

    /// Ends a worker so that it says on its stderr where it is.
    pub(crate) fn abort(&self, number: u64) {
        // As above.
        let _ = self.send(&order(ABORT, number), &[]);
    }

    /// Is the worker's process stopped, as SIGSTOP does? A debugger that holds it does not count.
    pub(crate) fn is_stopped(&self, number: u64) -> bool {
        let pid = self.living.state.lock().workers.get(&number).and_then(|it| it.pid);
        // It was not reaped, so the number is still its own.
        let stat = pid.and_then(|it| std::fs::read_to_string(format!("/proc/{it}/stat")).ok());
        // The name stands in parentheses and may hold anything.
        stat.is_some_and(|it| it.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }

    /// Has the parent kill them all and end. The listening task holds the socket too, so that to
    /// drop it is not enough.
    pub(crate) fn close(&self) {
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
    }
}

fn order(kind: u8, number: u64) -> [u8; 9] {
    let mut order = [kind; 9];
    order[1..].copy_from_slice(&number.to_le_bytes());
    order
}

impl LivingWorkers {
    /// Tells the ends of workers until their parent ends.
    pub(crate) async fn listen(&self, messages: UnixStream) {
        while let Some(message) = receive(&messages).await {
            let number = |at: usize| {
                let bytes = message.get(at..at + 8)?;
                bytes.try_into().ok().map(i64::from_le_bytes)
            };
            let (Some(kind), Some(worker), Some(pid), Some(status)) =
                (message.first(), number(1), number(9), number(17))
            else {
                continue;
            };
            match *kind {
                SPAWNED => self.spawned(worker as u64, pid),
                EXITED => self.exited(worker as u64, status),
                _ => (),
            }
        }
        self.state.lock().is_gone = true;
    }

    fn spawned(&self, worker: u64, pid: i64) {
        if let Some(worker) = self.state.lock().workers.get_mut(&worker) {
            worker.pid = Some(pid);
        }
    }

    fn exited(&self, worker: u64, status: i64) {
        let worker = self.state.lock().workers.remove(&worker);
        if let Some(worker) = worker {
            let exit = match status & 0x7f {
                0 => Exit::Status(status >> 8 & 0xff),
                signal => Exit::Signal(signal),
            };
            worker.exit.send_replace(Some(exit));
            self.reaper.reaped(1);
        }
    }

    /// Tells that all workers ended with their parent.
    pub(crate) fn lose_all(&self, how: &str) {
        let workers = std::mem::take(&mut self.state.lock().workers);
        self.reaper.reaped(workers.len());
        let how: Arc<str> = how.into();
        for worker in workers.into_values() {
            worker.exit.send_replace(Some(Exit::Lost(how.clone())));
        }
    }
}

/// Logs what comes out of a pipe, on the reaper's thread, which stays until the pipe ends.
pub(crate) fn follow(reaper: &Arc<Reaper>, pipe: OwnedFd, source: OutputSource) {
    let end = (source.stream == "stderr").then(|| source.tail.begin());
    let held = reaper.clone();
    reaper.spawn(async move {
        if let Ok(receiver) = pipe::Receiver::from_owned_fd(pipe) {
            stdio_log::follow(receiver, source).await;
        }
        drop(end);
        drop(held);
    });
}
