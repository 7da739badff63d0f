//! What the threads of the load are to do, and what they count: latencies, responses, failures.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Request, Status, metadata::MetadataMap, transport::Endpoint};

use super::super::{codec::CodecTime, histogram::LatencyHistogram};

/// A server that refuses at once is not to be asked as fast as it can refuse.
const REFUSAL_PAUSE: Duration = Duration::from_millis(20);

/// What servers say where the policy of a queue refuses a request.
const QUEUE_FULL: &str = "Exceeds maximum queue size";
const TIMED_OUT: &str = "Request timeout expired";

/// What is sent, and where to.
#[derive(Clone)]
pub(in super::super) struct Job {
    pub(in super::super) endpoint: Endpoint,
    pub(in super::super) headers: MetadataMap,
    /// As it is on the wire.
    pub(in super::super) request: Bytes,
    /// Responses come as many as they like, over a stream.
    pub(in super::super) is_decoupled: bool,
    /// Requests are those of sequences.
    pub(in super::super) sequences: Option<SequenceLoad>,
}

/// How sequences are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct SequenceLoad {
    /// Requests of each.
    pub(in super::super) length: u32,
    /// Models want a text as the id.
    pub(in super::super) has_text_ids: bool,
}

/// What the threads are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Phase {
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
pub(in super::super) struct LoadTotals {
    /// Of requests that were answered.
    pub(in super::super) latency: LatencyHistogram,
    /// Until the first response, of decoupled models.
    pub(in super::super) first: LatencyHistogram,
    pub(in super::super) responses: u64,
    pub(in super::super) failed: u64,
    /// Of those, refused since a queue was full.
    pub(in super::super) refused_full: u64,
    /// Of those, refused since they had waited for too long.
    pub(in super::super) timed_out: u64,
    /// Time spent on putting requests into buffers and on reading responses.
    pub(in super::super) codec_time: CodecTime,
}

/// What threads share.
#[derive(Default)]
pub(super) struct SharedCounts {
    pub(super) answered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) first_error: Mutex<Option<String>>,
}

/// One thread's part.
pub(super) struct LoadThread {
    pub(super) job: Job,
    pub(super) workers: usize,
    /// The id of the first worker's sequences; those of the others follow.
    pub(super) first_id: u64,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) common: Arc<SharedCounts>,
}

/// A request that was answered.
pub(super) struct AnsweredRequest {
    /// Until its last response.
    pub(super) latency: Duration,
    /// Until its first response, of decoupled models.
    pub(super) first_response: Option<Duration>,
    pub(super) responses: u64,
}

/// Counts what the requests of one thread came to.
pub(super) struct Recorder<'a> {
    pub(super) thread: &'a LoadThread,
    pub(super) seen: RefCell<LoadTotals>,
}

impl Recorder<'_> {
    /// Nothing is counted yet.
    pub(super) fn new(thread: &LoadThread) -> Recorder<'_> {
        Recorder { thread, seen: Default::default() }
    }

    /// A request was answered; is another to follow?
    pub(super) fn answered(&self, answered: AnsweredRequest) -> bool {
        self.thread.common.answered.fetch_add(1, Relaxed);
        let phase = *self.thread.phase.borrow();
        if phase == Phase::Measure {
            let mut seen = self.seen.borrow_mut();
            seen.latency.add(answered.latency);
            seen.responses += answered.responses;
            answered.first_response.into_iter().for_each(|it| seen.first.add(it));
        }
        phase < Phase::Drain
    }

    /// A request failed; is another to follow?
    pub(super) async fn failed(&self, text: String, is_lost: bool) -> bool {
        self.thread.common.failed.fetch_add(1, Relaxed);
        let phase = *self.thread.phase.borrow();
        if phase == Phase::Measure {
            let mut seen = self.seen.borrow_mut();
            seen.failed += 1;
            seen.refused_full += u64::from(text.contains(QUEUE_FULL));
            seen.timed_out += u64::from(text.contains(TIMED_OUT));
        }
        if phase <= Phase::Measure {
            self.thread.common.first_error.lock().get_or_insert(text);
        }
        if phase < Phase::Drain && is_lost {
            tokio::time::sleep(REFUSAL_PAUSE).await;
        }
        *self.thread.phase.borrow() < Phase::Drain
    }

    /// The same for what the connection says.
    pub(super) async fn refused(&self, status: &Status) -> bool {
        let is_lost = std::error::Error::source(status).is_some()
            || status.code() == tonic::Code::Unavailable;
        let text = match status.message() {
            "" => status.code().description().to_owned(),
            text => text.to_owned(),
        };
        self.failed(text, is_lost).await
    }
}

/// The message as a request with the headers of the command line.
pub(super) fn with_headers<T>(message: T, headers: &MetadataMap) -> Request<T> {
    let mut request = Request::new(message);
    if !headers.is_empty() {
        *request.metadata_mut() = headers.clone();
    }
    request
}
