//! Handle of one worker process: its exit, its last lines, and its end when the handle is dropped.

use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

use tokio::{io::AsyncReadExt, sync::watch};

use super::{
    children::{Exit, Parent},
    reaper::Reaper,
    stdio_log::StderrTail,
    stopped::StopWatch,
    worker_events::WorkerEvents,
};

/// How long a worker may take for `finalize`, and before that for the batch it is in.
const FINALIZE_GRACE: Duration = Duration::from_secs(2);
/// How long a worker may live on after it closed its socket or was aborted, and how long its
/// killing may take.
const EXIT_REPORT: Duration = Duration::from_secs(3);

/// A living worker. Dropping it lets it finalize, then kills it, on the reaper's thread.
pub(crate) struct Process {
    /// Kept until the exit is known: it takes its children along.
    parent: Arc<dyn Parent>,
    number: u64,
    exit: watch::Receiver<Option<Exit>>,
    tail: StderrTail,
    pub(crate) events: Arc<WorkerEvents>,
    /// Somebody reads the worker's frames to their end. Two who read would tear them apart.
    pub(crate) is_read: bool,
    /// The same socket as the frames': what is left in it after the worker's use ended.
    leftover: Option<Arc<UnixStream>>,
}

/// The end of a worker in words.
pub(crate) struct WorkerEnd {
    pub(crate) how: String,
    /// Its last lines on stderr.
    pub(crate) stderr: String,
}

impl Process {
    /// The handle of a worker that was just forked, whose frames come over `stream`.
    pub(crate) fn new(
        parent: Arc<dyn Parent>,
        number: u64,
        exit: watch::Receiver<Option<Exit>>,
        tail: StderrTail,
        events: WorkerEvents,
        stream: Arc<UnixStream>,
    ) -> Process {
        let (events, leftover) = (Arc::new(events), Some(stream));
        Process { parent, number, exit, tail, events, is_read: false, leftover }
    }

    /// What reaps it.
    pub(crate) fn reaper(&self) -> &Arc<Reaper> {
        self.parent.children().reaper()
    }

    /// How it ended and its last lines on stderr. Its socket closes a moment before it can be
    /// reaped; one that only closed its socket is killed.
    pub(crate) async fn ending(&self) -> WorkerEnd {
        let exit = self.exited().await;
        if exit.is_none() {
            self.kill();
            self.exited().await;
        }
        let how = match exit {
            Some(Exit::Status(status)) => format!("it exited with status {status}"),
            Some(Exit::Signal(signal)) => format!("it was ended by {}", signal_text(signal)),
            Some(Exit::Lost(how)) => how.to_string(),
            None => "it closed its socket, lived on and was killed".into(),
        };
        WorkerEnd { how, stderr: self.tail.text().await }
    }

    async fn exited(&self) -> Option<Exit> {
        tokio::time::timeout(EXIT_REPORT, wait_for(self.exit.clone())).await.ok().flatten()
    }

    /// Done once it is reaped, whoever else still has its socket.
    pub(crate) fn reaped(&self) -> impl Future<Output = ()> + use<> {
        let exit = self.exit.clone();
        async {
            wait_for(exit).await;
        }
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        self.parent.children().kill(self.number);
    }

    /// Is it stopped, as SIGSTOP does?
    pub(crate) fn is_stopped(&self) -> bool {
        self.parent.children().is_stopped(self.number)
    }

    /// Ends it if it stays stopped, until the result is dropped.
    pub(crate) fn watch_stops(&self) -> StopWatch {
        StopWatch::begin(self.parent.clone(), self.number)
    }

    /// Has it say on its stderr where it is, and end.
    pub(crate) fn abort(&self) {
        self.parent.children().abort(self.number);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(leftover) = self.leftover.take() else { return };
        // The worker reads the end of its input, finalizes and leaves.
        let _ = leftover.shutdown(std::net::Shutdown::Write);
        let process = Process {
            parent: self.parent.clone(),
            number: self.number,
            exit: self.exit.clone(),
            tail: self.tail.clone(),
            events: self.events.clone(),
            is_read: self.is_read,
            leftover: None,
        };
        self.reaper().spawn(async move {
            let leaving = process.leave(leftover);
            if tokio::time::timeout(FINALIZE_GRACE, leaving).await.is_err() {
                process.kill();
            }
            // The parent must not be dropped, and its children killed, before the exit is known.
            wait_for(process.exit.clone()).await;
        });
    }
}

impl Process {
    /// Reads what the worker still says unless somebody does, until it is reaped.
    async fn leave(&self, leftover: Arc<UnixStream>) {
        if !self.is_read {
            let _ = leftover.set_nonblocking(true);
            // Without a descriptor left it is not heard.
            let own = leftover.try_clone().and_then(tokio::net::UnixStream::from_std);
            if let Ok(mut stream) = own {
                while let Some((kind, body)) = next_frame(&mut stream).await {
                    self.events.log_last(kind, &body);
                }
            }
        }
        wait_for(self.exit.clone()).await;
    }
}

/// The next frame; large ones come without their body.
async fn next_frame(stream: &mut tokio::net::UnixStream) -> Option<(u8, Vec<u8>)> {
    let size = stream.read_u32_le().await.ok()?;
    let kind = stream.read_u32_le().await.ok()?.to_le_bytes()[0];
    let mut rest = stream.take(u64::from(size).saturating_sub(8));
    let mut body = Vec::new();
    if size < 1 << 20 {
        rest.read_to_end(&mut body).await.ok()?;
    } else {
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.ok()?;
    }
    Some((kind, body))
}

async fn wait_for(mut exit: watch::Receiver<Option<Exit>>) -> Option<Exit> {
    exit.wait_for(Option::is_some).await.ok().and_then(|it| it.clone())
}

/// A signal by number, and by name if it is one of those that end workers.
fn signal_text(signal: i64) -> String {
    let name = match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL, which is also what ends a process when memory runs out)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    };
    format!("signal {signal}{name}")
}
