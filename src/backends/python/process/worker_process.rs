//! One worker process from its first frame to its reaping.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;
use tokio::{io::AsyncReadExt, sync::watch};

use crate::python::process::children::Exit;
use crate::python::process::children::Forked;
use crate::python::process::children::Parent;
use crate::python::process::launch_spec::LaunchSpec;
use crate::python::process::progress::Progress;
use crate::python::process::reaper::reaper;
use crate::python::process::repository_calls::read_repository_call;
use crate::python::process::start_deadline::StartDeadline;
use crate::python::process::stdio_log::StderrTail;
use crate::python::process::worker_events::WorkerEvents;
use crate::python::protocol::decode::Cursor;
use crate::python::protocol::frames::{FRAME_LIMIT, frame_head};
use troupe_base::error::{Error, Result};

/// How long a worker may take for `finalize`, and before that for the batch it is in.
const FINALIZE_GRACE: Duration = Duration::from_secs(2);
/// How long a worker may live on after it closed its socket or was aborted, and how long its
/// killing may take.
const EXIT_REPORT: Duration = Duration::from_secs(3);

/// A worker that is ready.
pub(crate) struct Launched {
    pub(crate) process: Process,
    pub(crate) stream: UnixStream,
    pub(crate) passing: OwnedFd,
    pub(crate) progress: Progress,
    pub(crate) ready: Ready,
}

/// What a worker says once its model is initialized, or its configuration completed.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ready {
    /// The configuration it completed.
    pub(crate) config: Option<String>,
    /// Its `execute` is a coroutine function: it can have many executions in work.
    pub(crate) is_async: bool,
    /// It has `is_ready`.
    pub(crate) has_check: bool,
}

#[derive(Deserialize)]
struct Failed {
    error: String,
    is_import: bool,
}

/// Why a worker did not get ready.
#[derive(Debug)]
pub(crate) struct LaunchError {
    pub(crate) error: Error,
    /// A module is missing.
    pub(crate) is_import: bool,
}

impl From<Error> for LaunchError {
    fn from(error: Error) -> LaunchError {
        LaunchError { error, is_import: false }
    }
}

/// A living worker. Dropping it lets it finalize, then kills it, on the keeper's thread.
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
    farewell: Option<UnixStream>,
}

/// Starts a worker and waits until its model is initialized. Blocks.
pub(crate) fn launch(spec: &LaunchSpec) -> Result<Launched, LaunchError> {
    let parent = spec.source.parent()?;
    let forked = parent.children().fork(&spec.model, &spec.instance)?;
    let Forked { number, stream, passing, progress, exit, tail } = forked;
    let failed = |error: std::io::Error| {
        Error::internal(format!("cannot start a worker for '{}': {error}", spec.instance))
    };
    let mut stream = UnixStream::from(stream);
    let farewell = Some(stream.try_clone().map_err(failed)?);
    let names = (&spec.model, &spec.instance);
    let events = Arc::new(WorkerEvents::new(names, &spec.metrics, &spec.copied));
    let process = Process { parent, number, exit, tail, events, is_read: false, farewell };
    let is_wanted = spec.starting.begin(&stream);
    let deadline = StartDeadline::begin(spec.time_limit);
    let ready = match is_wanted {
        true => initialize(spec, &process, (&mut stream, deadline)),
        false => Ok(None),
    };
    spec.starting.end();
    match ready? {
        Some(ready) => Ok(Launched { process, stream, passing, progress, ready }),
        None => Err(died_at_start(process, &spec.instance, deadline.overrun())?.into()),
    }
}

/// `None` if the worker ends, or its time.
fn initialize(
    spec: &LaunchSpec,
    process: &Process,
    (stream, deadline): (&mut UnixStream, StartDeadline),
) -> Result<Option<Ready>, LaunchError> {
    let setup = serde_json::to_vec(&spec.setup)
        .map_err(|error| Error::internal(format!("cannot describe the model: {error}")))?;
    let mut frame = frame_head(b'I', setup.len());
    frame.extend_from_slice(&setup);
    // A worker that ended at once is noticed below.
    let _ = stream.write_all(&frame);
    while let Some((kind, body)) = read_frame(stream, deadline) {
        match kind {
            b'R' => return Ok(Some(parse(&body)?)),
            b'X' => {
                let Failed { error, is_import } = parse(&body)?;
                return Err(LaunchError { error: Error::internal(error), is_import });
            }
            b'L' => process.events.log(&body),
            b'U' => {
                let change = read_repository_call(&mut Cursor::at(&body.into(), 0))
                    .map_err(Error::internal)?;
                let (lookup, within) = (spec.lookup.clone(), Some(spec.model.clone()));
                let changed = deadline.limit(change.reply(lookup, within));
                let Some(reply) = reaper().wait(changed)? else { return Ok(None) };
                // A worker that has ended is noticed above.
                let _ = stream.write_all(&reply);
            }
            b'M' => {
                let answer = process.events.count(&body).map_err(unknown)?;
                // A worker that ended is noticed by the next read.
                let _ = stream.write_all(&answer.unwrap_or_default());
            }
            _ => return Err(unknown(format!("a frame of kind {kind}")).into()),
        }
    }
    Ok(None)
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| Error::internal(format!("the worker sent no valid JSON: {error}")))
}

fn unknown(what: String) -> Error {
    Error::internal(format!("the worker sent {what}"))
}

fn died_at_start(process: Process, instance: &str, late: Option<String>) -> Result<Error> {
    if late.is_some() {
        process.abort();
    }
    let WorkerEnd { how, said } = reaper().wait(async move { process.ending().await })?;
    let how = late.unwrap_or(how);
    Ok(Error::internal(format!(
        "Stub process '{instance}' ended while the model was loaded: {how}; {said}"
    )))
}

fn read_frame(stream: &UnixStream, deadline: StartDeadline) -> Option<(u8, Vec<u8>)> {
    let mut stream = deadline.reader(stream);
    let mut head = [0; 8];
    stream.read_exact(&mut head).ok()?;
    let size = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let mut body = Vec::new();
    let length = size.checked_sub(8).filter(|_| size <= FRAME_LIMIT)?;
    stream.take(length as u64).read_to_end(&mut body).ok()?;
    (body.len() == length).then_some((head[4], body))
}

/// The end of a worker in words.
pub(crate) struct WorkerEnd {
    pub(crate) how: String,
    /// Its last lines on stderr.
    pub(crate) said: String,
}

impl Process {
    /// How it ended and what it last said. Its socket closes a moment before it can be reaped; one
    /// that only closed its socket is killed.
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
        WorkerEnd { how, said: self.tail.text().await }
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

    /// Has it say on its stderr where it is, and end.
    pub(crate) fn abort(&self) {
        self.parent.children().abort(self.number);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(farewell) = self.farewell.take() else { return };
        // The worker reads the end of its input, finalizes and leaves.
        let _ = farewell.shutdown(std::net::Shutdown::Write);
        let process = Process {
            parent: self.parent.clone(),
            number: self.number,
            exit: self.exit.clone(),
            tail: self.tail.clone(),
            events: self.events.clone(),
            is_read: self.is_read,
            farewell: None,
        };
        reaper().spawn(async move {
            let leaving = process.leave(farewell);
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
    async fn leave(&self, farewell: UnixStream) {
        if !self.is_read {
            let _ = farewell.set_nonblocking(true);
            if let Ok(mut stream) = tokio::net::UnixStream::from_std(farewell) {
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
