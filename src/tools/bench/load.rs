//! Load: so many requests in flight, each answered before its successor is sent.

mod stream;
mod unary;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{runtime::Builder, sync::watch};
use tonic::{
    Request, Status,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

use super::{codec, histogram::Histogram};

/// Beyond them requests share connections.
const MOST_CONNECTIONS: usize = 64;

/// A server that refuses at once is not to be asked as fast as it can refuse.
const PAUSE: Duration = Duration::from_millis(20);

/// What is sent, and where to.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) endpoint: Endpoint,
    pub(super) headers: MetadataMap,
    /// As it is on the wire.
    pub(super) request: Bytes,
    /// Responses come as many as they like, over a stream.
    pub(super) is_decoupled: bool,
}

/// What the threads are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Ask, but do not count.
    WarmUp,
    /// Ask and count.
    Measure,
    /// Ask no more; what is in flight may end.
    Drain,
    /// Drop what is in flight.
    Abort,
}

/// What was seen while measuring.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// Of requests that were answered.
    pub(super) latency: Histogram,
    /// Until the first response, of decoupled models.
    pub(super) first: Histogram,
    pub(super) responses: u64,
    pub(super) failed: u64,
    /// Nanoseconds spent on putting requests into buffers, and on reading responses.
    pub(super) spent: (u64, u64),
}

/// Load under way.
pub(super) struct Load {
    threads: Vec<JoinHandle<Result<Seen, String>>>,
    phase: watch::Sender<Phase>,
    common: Arc<Common>,
}

/// What threads share.
#[derive(Default)]
struct Common {
    answered: AtomicU64,
    failed: AtomicU64,
    first_error: Mutex<Option<String>>,
}

/// One thread's part.
struct Part {
    job: Job,
    workers: usize,
    phase: watch::Receiver<Phase>,
    common: Arc<Common>,
}

impl Load {
    /// Begins to warm up.
    pub(super) fn start(job: &Job, in_flight: usize) -> Result<Load, String> {
        let common = Arc::new(Common::default());
        let (phase, watched) = watch::channel(Phase::WarmUp);
        let mut threads = Vec::new();
        let count = thread_count().min(in_flight);
        for index in 0..count {
            let part = Part {
                job: job.clone(),
                workers: in_flight / count + usize::from(index < in_flight % count),
                phase: watched.clone(),
                common: common.clone(),
            };
            let thread = thread::Builder::new().name(format!("load {index}"));
            let thread = thread.spawn(move || run(&part));
            threads.push(thread.map_err(|error| format!("cannot start a thread: {error}"))?);
        }
        Ok(Load { threads, phase, common })
    }

    /// Goes on to another phase.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Requests answered and failed so far, from the beginning.
    pub(super) fn so_far(&self) -> (u64, u64) {
        (self.common.answered.load(Relaxed), self.common.failed.load(Relaxed))
    }

    /// Has everything in flight ended?
    pub(super) fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// What all threads have seen, and the first error's text.
    pub(super) fn end(self) -> Result<(Seen, Option<String>), String> {
        let mut all = Seen::default();
        for thread in self.threads {
            let seen = thread.join().map_err(|_| "a thread of the load panicked".to_owned())??;
            all.latency.merge(&seen.latency);
            all.first.merge(&seen.first);
            all.responses += seen.responses;
            all.failed += seen.failed;
            all.spent.0 += seen.spent.0;
            all.spent.1 += seen.spent.1;
        }
        Ok((all, self.common.first_error.lock().take()))
    }
}

/// Threads that send: half of the cores, the rest is the server's.
pub(super) fn thread_count() -> usize {
    (thread::available_parallelism().map_or(1, Into::into) / 2).clamp(1, 8)
}

fn run(part: &Part) -> Result<Seen, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let begin = codec::spent();
    let seen = runtime.block_on(async {
        let connections = part.workers.min(MOST_CONNECTIONS);
        let channels: Vec<Channel> =
            (0..connections).map(|_| part.job.endpoint.connect_lazy()).collect();
        let recorder = Recorder::new(part);
        let workers = (0..part.workers).map(|it| {
            let channel = channels[it % connections].clone();
            async {
                if part.job.is_decoupled {
                    stream::work(channel, part, &recorder).await;
                } else {
                    unary::work(channel, part, &recorder).await;
                }
            }
        });
        let mut phase = part.phase.clone();
        tokio::select! {
            _ = join_all(workers) => (),
            // An error means that nobody is there any more to measure for.
            _ = phase.wait_for(|it| *it == Phase::Abort) => (),
        }
        recorder.seen.into_inner()
    });
    let end = codec::spent();
    Ok(Seen { spent: (end.0 - begin.0, end.1 - begin.1), ..seen })
}

/// What the workers of a thread have seen.
struct Recorder<'a> {
    part: &'a Part,
    seen: std::cell::RefCell<Seen>,
}

impl Recorder<'_> {
    fn new(part: &Part) -> Recorder<'_> {
        Recorder { part, seen: Default::default() }
    }

    /// A request was answered; is another to follow?
    fn answered(&self, took: Duration, (first, responses): (Option<Duration>, u64)) -> bool {
        self.part.common.answered.fetch_add(1, Relaxed);
        let phase = *self.part.phase.borrow();
        if phase == Phase::Measure {
            let mut seen = self.seen.borrow_mut();
            seen.latency.add(took);
            seen.responses += responses;
            first.into_iter().for_each(|it| seen.first.add(it));
        }
        phase < Phase::Drain
    }

    /// A request failed; is another to follow?
    async fn failed(&self, text: String, is_lost: bool) -> bool {
        self.part.common.failed.fetch_add(1, Relaxed);
        let phase = *self.part.phase.borrow();
        if phase <= Phase::Measure {
            self.part.common.first_error.lock().get_or_insert(text);
        }
        if phase == Phase::Measure {
            self.seen.borrow_mut().failed += 1;
        }
        if phase < Phase::Drain && is_lost {
            tokio::time::sleep(PAUSE).await;
        }
        *self.part.phase.borrow() < Phase::Drain
    }

    /// The same for what the connection says.
    async fn refused(&self, status: &Status) -> bool {
        let is_lost = std::error::Error::source(status).is_some()
            || status.code() == tonic::Code::Unavailable;
        let text = match status.message() {
            "" => status.code().description().to_owned(),
            text => text.to_owned(),
        };
        self.failed(text, is_lost).await
    }
}

fn asked<T>(message: T, headers: &MetadataMap) -> Request<T> {
    let mut request = Request::new(message);
    if !headers.is_empty() {
        *request.metadata_mut() = headers.clone();
    }
    request
}
