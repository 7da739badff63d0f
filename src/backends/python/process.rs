//! One worker process from its first frame to its reaping.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use serde::Deserialize;
use tokio::{io::AsyncReadExt, sync::watch};

use super::{
    changes::change,
    decode::Cursor,
    forks::{Exit, Forked, Parent},
    keeper::keeper,
    lines::Tail,
    patience::Patience,
    progress::Progress,
    recipe::Recipe,
    words::Words,
};
use troupe_base::error::{Error, Result};

/// How long a worker may take for `finalize`, and before that for the batch it is in.
const FINALIZE_GRACE: Duration = Duration::from_secs(2);
/// How long a worker may live on after it closed its socket or was aborted, and how long its
/// killing may take.
const EXIT_REPORT: Duration = Duration::from_secs(3);
/// The largest frame a worker may send, and about the largest it is sent.
pub(super) const FRAME_LIMIT: usize = 1 << 30;

/// A worker that is ready.
pub(super) struct Launched {
    pub(super) process: Process,
    pub(super) stream: UnixStream,
    pub(super) passing: OwnedFd,
    pub(super) progress: Progress,
    pub(super) ready: Ready,
}

/// What a worker says once its model is initialized, or its configuration completed.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Ready {
    /// The configuration it completed.
    pub(super) config: Option<String>,
    /// Its `execute` is a coroutine function: it can have many executions in work.
    pub(super) is_async: bool,
    /// It has `is_ready`.
    pub(super) has_check: bool,
}

#[derive(Deserialize)]
struct Failed {
    error: String,
    is_import: bool,
}

/// Why a worker did not get ready.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: Error,
    /// A module is missing.
    pub(super) is_import: bool,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, is_import: false }
    }
}

/// A living worker. Dropping it lets it finalize, then kills it, on the keeper's thread.
pub(super) struct Process {
    /// Kept until the exit is known: it takes its children along.
    parent: Arc<dyn Parent>,
    number: u64,
    exit: watch::Receiver<Option<Exit>>,
    tail: Tail,
    pub(super) words: Arc<Words>,
    /// Somebody reads the worker's frames to their end. Two who read would tear them apart.
    pub(super) is_read: bool,
    /// The same socket as the frames': what is left in it after the worker's use ended.
    farewell: Option<UnixStream>,
}

/// Starts a worker and waits until its model is initialized. Blocks.
pub(super) fn launch(recipe: &Recipe) -> Result<Launched, Refused> {
    let parent = recipe.source.parent()?;
    let forked = parent.forks().fork(&recipe.model, &recipe.instance)?;
    let Forked { number, stream, passing, progress, exit, tail } = forked;
    let failed = |error: std::io::Error| {
        Error::internal(format!("cannot start a worker for '{}': {error}", recipe.instance))
    };
    let mut stream = UnixStream::from(stream);
    let farewell = Some(stream.try_clone().map_err(failed)?);
    let names = (&recipe.model, &recipe.instance);
    let words = Arc::new(Words::new(names, &recipe.metrics, &recipe.copied));
    let process = Process { parent, number, exit, tail, words, is_read: false, farewell };
    let is_wanted = recipe.starting.begin(&stream);
    let patience = Patience::begin(recipe.time_limit);
    let ready = match is_wanted {
        true => initialize(recipe, &process, (&mut stream, patience)),
        false => Ok(None),
    };
    recipe.starting.end();
    match ready? {
        Some(ready) => Ok(Launched { process, stream, passing, progress, ready }),
        None => Err(died_at_start(process, &recipe.instance, patience.late())?.into()),
    }
}

/// `None` if the worker ends, or its time.
fn initialize(
    recipe: &Recipe,
    process: &Process,
    (stream, patience): (&mut UnixStream, Patience),
) -> Result<Option<Ready>, Refused> {
    let orders = serde_json::to_vec(&recipe.orders)
        .map_err(|error| Error::internal(format!("cannot describe the model: {error}")))?;
    let mut frame = frame_head(b'I', orders.len());
    frame.extend_from_slice(&orders);
    // A worker that ended at once is noticed below.
    let _ = stream.write_all(&frame);
    while let Some((kind, body)) = read_frame(stream, patience) {
        match kind {
            b'R' => return Ok(Some(parse(&body)?)),
            b'X' => {
                let Failed { error, is_import } = parse(&body)?;
                return Err(Refused { error: Error::internal(error), is_import });
            }
            b'L' => process.words.log(&body),
            b'U' => {
                let change = change(&mut Cursor::at(&body.into(), 0)).map_err(Error::internal)?;
                let (lookup, within) = (recipe.lookup.clone(), Some(recipe.model.clone()));
                let changed = patience.keep(change.reply(lookup, within));
                let Some(reply) = keeper().wait(changed)? else { return Ok(None) };
                // A worker that has ended is noticed above.
                let _ = stream.write_all(&reply);
            }
            b'M' => {
                let answer = process.words.count(&body).map_err(unknown)?;
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
    let Ending { how, said } = keeper().wait(async move { process.ending().await })?;
    let how = late.unwrap_or(how);
    Ok(Error::internal(format!(
        "Stub process '{instance}' ended while the model was loaded: {how}; {said}"
    )))
}

/// Length and kind; frames are multiples of 8 bytes long, JSON ends in blanks.
pub(super) fn frame_head(kind: u8, body: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(8 + body);
    head.extend_from_slice(&((8 + body) as u32).to_le_bytes());
    head.extend_from_slice(&[kind, 0, 0, 0]);
    head
}

fn read_frame(stream: &UnixStream, patience: Patience) -> Option<(u8, Vec<u8>)> {
    let mut stream = patience.reads(stream);
    let mut head = [0; 8];
    stream.read_exact(&mut head).ok()?;
    let size = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let mut body = Vec::new();
    let length = size.checked_sub(8).filter(|_| size <= FRAME_LIMIT)?;
    stream.take(length as u64).read_to_end(&mut body).ok()?;
    (body.len() == length).then_some((head[4], body))
}

/// The end of a worker in words.
pub(super) struct Ending {
    pub(super) how: String,
    /// Its last lines on stderr.
    pub(super) said: String,
}

impl Process {
    /// How it ended and what it last said. Its socket closes a moment before it can be reaped; one
    /// that only closed its socket is killed.
    pub(super) async fn ending(&self) -> Ending {
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
        Ending { how, said: self.tail.text().await }
    }

    async fn exited(&self) -> Option<Exit> {
        tokio::time::timeout(EXIT_REPORT, wait_for(self.exit.clone())).await.ok().flatten()
    }

    /// Done once it is reaped, whoever else still has its socket.
    pub(super) fn reaped(&self) -> impl Future<Output = ()> + use<> {
        let exit = self.exit.clone();
        async {
            wait_for(exit).await;
        }
    }

    /// Ends it at once.
    pub(super) fn kill(&self) {
        self.parent.forks().kill(self.number);
    }

    /// Has it say on its stderr where it is, and end.
    pub(super) fn abort(&self) {
        self.parent.forks().abort(self.number);
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
            words: self.words.clone(),
            is_read: self.is_read,
            farewell: None,
        };
        keeper().spawn(async move {
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
                    self.words.last(kind, &body);
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
