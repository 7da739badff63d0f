//! Detached requests: answered apart from their group, with any number of responses.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::in_flight::{InFlightBatch, RequestKey};
use troupe_base::{
    error::Error,
    request::{Credit, Reply, Request},
    statistics::Timing,
};

/// Credit is sent once so many bytes were taken: a quarter of what it may have on the way.
const CREDIT_STEP: u64 = 256 << 10;

/// Responses of one request that its client has not taken. A worker waits long before: each of them
/// takes 256 bytes of its window of 1 or 2 MiB.
const MAX_UNTAKEN_RESPONSES: usize = 16_384;

/// Requests that were detached and have not ended.
pub(crate) struct DetachedRequests {
    pub(super) requests: HashMap<RequestKey, DetachedRequest>,
    taken: mpsc::UnboundedSender<TakenBytes>,
}

/// Bytes of a request's responses that have left us.
pub(crate) struct TakenBytes {
    pub(crate) key: RequestKey,
    pub(crate) size: u64,
}

pub(super) struct DetachedRequest {
    pub(super) request: Request,
    pub(super) reply: Reply,
    begun: Instant,
    queue: Duration,
    window: Arc<ResponseWindow>,
}

/// What became of the responses of one request.
#[derive(Default)]
struct ResponseWindow {
    /// Bytes whose responses have left us and that the worker has no credit for yet.
    returned: AtomicU64,
    /// Responses that have not left us.
    waiting: AtomicUsize,
}

impl DetachedRequest {
    pub(super) fn timing(&self) -> Timing {
        let compute_infer = self.begun.elapsed();
        self.reply.whole(Timing { queue: self.queue, compute_infer, ..Timing::default() })
    }
}

impl DetachedRequests {
    /// The other end hears of credit to give back.
    pub(crate) fn new() -> (DetachedRequests, mpsc::UnboundedReceiver<TakenBytes>) {
        let (taken, receiver) = mpsc::unbounded_channel();
        (DetachedRequests { requests: HashMap::new(), taken }, receiver)
    }

    /// Has its caller gone? So has that of a request we do not know any more.
    pub(crate) fn is_cancelled(&self, key: RequestKey) -> bool {
        self.requests.get(&key).is_none_or(|it| it.request.context.is_stopped())
    }

    /// All of them.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.values().map(|it| &it.request)
    }

    /// Was it detached, and has it not ended?
    pub(crate) fn has(&self, key: RequestKey) -> bool {
        self.requests.contains_key(&key)
    }

    /// Takes the request out of its group, unless that was done before.
    pub(crate) fn detach(&mut self, flight: &InFlightBatch, key: RequestKey) {
        let Some(request) = flight.request(key) else { return };
        let (group, index) = (key.group as usize, key.index as usize);
        let Some(mut reply) = flight.done.detach(group, index) else { return };
        reply.begun(flight.begun);
        let queue = flight.begun.saturating_duration_since(reply.waits_since());
        let (request, begun, window) = (request.clone(), flight.begun, Arc::default());
        self.requests.insert(key, DetachedRequest { request, reply, begun, queue, window });
    }

    /// Takes a request out that is to be executed anew.
    pub(crate) fn take(&mut self, key: RequestKey) -> Option<Reply> {
        self.requests.remove(&key).map(|it| it.reply)
    }

    /// Answers those of one group, `execute` having raised.
    pub(crate) fn fail_group(&mut self, sequence: u32, group: usize, error: &Error) {
        let is_of_group =
            |key: &RequestKey| (key.sequence, key.group as usize) == (sequence, group);
        self.fail_where(|key, _| is_of_group(key).then(|| error.clone()));
    }

    /// Answers all.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.fail_where(|_, _| Some(error.clone()));
    }

    /// Answers those whose callers have gone; what the worker still says of them is dropped.
    pub(crate) fn answer_cancelled(&mut self) {
        self.fail_where(|_, it| it.request.context.stopped());
    }

    /// Answers those for which there is an error.
    fn fail_where(&mut self, error: impl Fn(&RequestKey, &DetachedRequest) -> Option<Error>) {
        let failed = self.requests.iter().filter_map(|(key, open)| Some((*key, error(key, open)?)));
        for (key, error) in failed.collect::<Vec<_>>() {
            if let Some(reply) = self.take(key) {
                reply.answer(Err(error));
            }
        }
    }

    /// Gives `size` bytes back to the sender's window once the client has the response. An error is
    /// the worker's, which does not wait for that.
    pub(super) fn credit(&self, key: RequestKey, size: u64) -> Result<Arc<Credit>, String> {
        let sender = self.taken.clone();
        let Some(window) = self.requests.get(&key).map(|it| it.window.clone()) else {
            // Nobody waits for it.
            return Ok(Credit::new(move || {
                let _ = sender.send(TakenBytes { key, size });
            }));
        };
        if MAX_UNTAKEN_RESPONSES <= window.waiting.fetch_add(1, Ordering::Relaxed) {
            return Err(format!(
                "{MAX_UNTAKEN_RESPONSES} responses ahead of the client of one request"
            ));
        }
        Ok(Credit::new(move || {
            window.waiting.fetch_sub(1, Ordering::Relaxed);
            if CREDIT_STEP <= window.returned.fetch_add(size, Ordering::AcqRel) + size {
                let size = window.returned.swap(0, Ordering::AcqRel);
                let _ = sender.send(TakenBytes { key, size });
            }
        }))
    }
}
