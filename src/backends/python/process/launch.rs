//! Starts a worker process and follows it until its model is initialized.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
};

use serde::Deserialize;

use super::{
    children::Forked,
    launch_spec::{LaunchCause, LaunchError, LaunchSpec},
    progress::Progress,
    repository_calls::read_repository_call,
    start_deadline::StartDeadline,
    worker_events::WorkerEvents,
    worker_process::{Process, WorkerEnd},
};
use crate::python::protocol::{
    decode::Cursor,
    frames::{FRAME_LIMIT, frame_head},
    kinds,
};
use troupe_base::error::{Error, Result};

/// A worker that is ready.
pub(crate) struct Launched {
    pub(crate) process: Process,
    pub(crate) stream: Arc<UnixStream>,
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

/// Starts a worker and waits until its model is initialized. Blocks.
pub(crate) fn launch(spec: &LaunchSpec) -> Result<Launched, LaunchError> {
    let parent = spec.parent.running()?;
    let forked = parent.children().fork(&spec.model, &spec.instance)?;
    let Forked { number, stream, passing, progress, exit, tail } = forked;
    let stream = Arc::new(UnixStream::from(stream));
    let events = WorkerEvents::new(&spec.model, &spec.instance, &spec.metrics, &spec.copied);
    let process = Process::new(parent, number, exit, tail, events, stream.clone());
    let is_wanted = spec.starting.begin(&stream);
    let (deadline, stops) = (StartDeadline::begin(spec.time_limit), process.watch_stops());
    let ready = match is_wanted {
        true => initialize(spec, &process, &stream, deadline),
        false => Ok(None),
    };
    spec.starting.end();
    match ready? {
        Some(ready) => Ok(Launched { process, stream, passing, progress, ready }),
        None => {
            let overrun = deadline.overrun();
            let cause = match overrun {
                Some(_) => LaunchCause::Overrun,
                None => LaunchCause::Other,
            };
            let why = overrun.or_else(|| stops.reason());
            Err(LaunchError { error: died_at_start(process, &spec.instance, why)?, cause })
        }
    }
}

/// `None` if the worker ends, or its time.
fn initialize(
    spec: &LaunchSpec,
    process: &Process,
    mut stream: &UnixStream,
    deadline: StartDeadline,
) -> Result<Option<Ready>, LaunchError> {
    let setup = serde_json::to_vec(&spec.setup)
        .map_err(|error| Error::internal(format!("cannot describe the model: {error}")))?;
    let mut frame = frame_head(kinds::INIT, setup.len());
    frame.extend_from_slice(&setup);
    // A worker that ended at once is noticed below.
    let _ = stream.write_all(&frame);
    while let Some((kind, body)) = read_frame(stream, deadline) {
        match kind {
            kinds::READY => return Ok(Some(parse(&body)?)),
            kinds::FAILED => {
                let Failed { error, is_import } = parse(&body)?;
                let cause = if is_import { LaunchCause::Import } else { LaunchCause::Other };
                return Err(LaunchError { error: Error::internal(error), cause });
            }
            kinds::LOG => process.events.log(&body),
            kinds::REPOSITORY => {
                let call = read_repository_call(&mut Cursor::at(&body.into(), 0))
                    .map_err(Error::internal)?;
                let (lookup, within) = (spec.lookup.clone(), Some(spec.model.clone()));
                let replied = deadline.limit(call.reply(lookup, within));
                let Some(reply) = spec.reaper.wait(replied)? else { return Ok(None) };
                // A worker that has ended is noticed above.
                let _ = stream.write_all(&reply);
            }
            kinds::METRICS => {
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

/// `why`: it was, or is to be, ended for this.
fn died_at_start(process: Process, instance: &str, why: Option<String>) -> Result<Error> {
    if why.is_some() {
        process.abort();
    }
    let reaper = process.reaper().clone();
    let WorkerEnd { how, stderr } = reaper.wait(async move { process.ending().await })?;
    let how = why.unwrap_or(how);
    Ok(Error::internal(format!(
        "Stub process '{instance}' ended while the model was loaded: {how}; {stderr}"
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
