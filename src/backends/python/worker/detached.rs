//! Requests answered apart from their group: any number of responses, from any thread of the worker.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Weak,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use crate::python::protocol::decode::Cursor;
use crate::python::protocol::decode::single;
use crate::python::protocol::frames::frame_head;
use crate::python::worker::in_flight::InFlightBatch;
use crate::python::worker::link::Link;
use crate::python::worker::link::State;
use troupe_base::{
    error::Error,
    request::{Credit, Part, Reply, Request, Response},
    statistics::Timing,
};

/// Flags of a `PART` frame; `senders.py` has the same.
const FINAL: u32 = 1;
const HAS_RESPONSE: u32 = 2;
/// The worker is told once so many bytes were taken: a quarter of what it may have on the way.
const TELL: u64 = 256 << 10;

/// A request as both sides name it: the frame it came in, its group there, its place in the group.
pub(crate) type Key = (u32, u32, u32);

/// Requests that were detached and have not ended.
pub(crate) struct DetachedRequests {
    requests: HashMap<Key, DetachedRequest>,
    taken: mpsc::UnboundedSender<Taken>,
}

/// Bytes of a request's responses that have left us.
pub(crate) type Taken = (Key, u64);

struct DetachedRequest {
    request: Request,
    reply: Reply,
    begun: Instant,
    queue: Duration,
    /// Bytes whose responses have left us and that the worker was not told of.
    returned: Arc<AtomicU64>,
}

impl DetachedRequest {
    fn timing(&self) -> Timing {
        let compute_infer = self.begun.elapsed();
        Timing { queue: self.queue, compute_infer, ..Timing::default() }
    }
}

impl DetachedRequests {
    /// The other end hears of credit to give back.
    pub(crate) fn new() -> (DetachedRequests, mpsc::UnboundedReceiver<Taken>) {
        let (taken, told) = mpsc::unbounded_channel();
        (DetachedRequests { requests: HashMap::new(), taken }, told)
    }

    /// Has its caller gone? So has that of a request we do not know any more.
    pub(crate) fn is_cancelled(&self, key: Key) -> bool {
        self.requests.get(&key).is_none_or(|it| it.request.context.is_stopped())
    }

    /// All of them.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.values().map(|it| &it.request)
    }

    /// Was it detached, and has it not ended?
    pub(crate) fn has(&self, key: Key) -> bool {
        self.requests.contains_key(&key)
    }

    /// Takes the request out of its group, unless that was done before.
    pub(crate) fn detach(&mut self, flight: &InFlightBatch, key: Key) {
        let (group, index) = (key.1 as usize, key.2 as usize);
        let request = flight.groups.get(group).and_then(|it| it.requests.as_ref()?.get(index));
        let Some(request) = request else { return };
        let Some(mut reply) = flight.done.detach(group, index) else { return };
        reply.begun(flight.begun);
        let queue = flight.begun.saturating_duration_since(reply.since());
        let (request, begun, returned) = (request.clone(), flight.begun, Arc::default());
        self.requests.insert(key, DetachedRequest { request, reply, begun, queue, returned });
    }

    /// Takes a request out that is to be executed anew.
    pub(crate) fn take(&mut self, key: Key) -> Option<Reply> {
        self.requests.remove(&key).map(|it| it.reply)
    }

    /// Answers those of one group, `execute` having raised.
    pub(crate) fn fail_group(&mut self, sequence: u32, group: usize, error: &Error) {
        let is_of_group = |key: &Key| (key.0, key.1 as usize) == (sequence, group);
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
    fn fail_where(&mut self, error: impl Fn(&Key, &DetachedRequest) -> Option<Error>) {
        let failed = self.requests.iter().filter_map(|(key, open)| Some((*key, error(key, open)?)));
        for (key, error) in failed.collect::<Vec<_>>() {
            if let Some(reply) = self.take(key) {
                reply.answer(Err(error));
            }
        }
    }

    /// Gives `size` bytes back to the sender's window once the client has the response.
    fn credit(&self, key: Key, size: u64) -> Arc<Credit> {
        let taken = self.taken.clone();
        let Some(returned) = self.requests.get(&key).map(|it| it.returned.clone()) else {
            // Nobody waits for it.
            return Credit::new(move || {
                let _ = taken.send((key, size));
            });
        };
        Credit::new(move || {
            if TELL <= returned.fetch_add(size, Ordering::AcqRel) + size {
                let _ = taken.send((key, returned.swap(0, Ordering::AcqRel)));
            }
        })
    }
}

impl Link {
    /// One response of a request, or its end. An error is the worker's, and its end.
    pub(crate) fn part(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
        let key = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let (flags, size) = (cursor.u32()?, cursor.u64()?);
        if let Some(flight) = self.in_flight.iter().find(|it| it.sequence == key.0) {
            self.open.detach(flight, key);
        }
        let State::Up(connection) = &mut self.state else { return Ok(()) };
        let config = &self.setup.config;
        let read = Instant::now();
        let response = if flags & HAS_RESPONSE == 0 {
            None
        } else {
            let open = self.open.requests.get(&key);
            let request = open.map(|it| it.request.clone()).unwrap_or_default();
            Some(single(cursor, config, &request, &mut connection.segments)?)
        };
        // A model that is not decoupled has nothing to say after its response.
        let is_final = flags & FINAL != 0 || !config.decoupled;
        if !is_final {
            let credit = Some(self.open.credit(key, size));
            let timing = Timing { compute_output: read.elapsed(), ..Timing::default() };
            let response = response.map(|it| it.map(|it| Response { timing, ..it }));
            if let (Some(open), Some(result)) = (self.open.requests.get_mut(&key), response) {
                open.reply.part(Part { result, credit });
            }
            return Ok(());
        }
        let Some(open) = self.open.requests.remove(&key) else { return Ok(()) };
        self.is_proven = true;
        let timing = open.timing();
        match response {
            Some(response) => open.reply.answer(response.map(|it| Response { timing, ..it })),
            None if config.decoupled => open.reply.end(timing),
            None => open.reply.answer(Err(Error::internal(format!(
                "model '{}' let go of the response sender of a request without a response",
                config.name
            )))),
        }
        Ok(())
    }

    /// Tells the worker what its clients have taken, and which of its segments that freed.
    fn send_credit(&mut self, taken: &[Taken]) {
        let State::Up(connection) = &mut self.state else { return };
        let released = connection.segments.released();
        if !released.is_empty() {
            let mut frame = frame_head(b'r', 8 * released.len());
            frame.extend(released.iter().flat_map(|it| it.to_le_bytes()));
            connection.write(&frame);
        }
        let mut frame = frame_head(b'k', 24 * taken.len());
        for ((sequence, group, index), size) in taken {
            for number in [*sequence, *group, *index, 0] {
                frame.extend_from_slice(&number.to_le_bytes());
            }
            frame.extend_from_slice(&size.to_le_bytes());
        }
        connection.write(&frame);
    }
}

/// Hands credit back to the worker for as long as the instance lives.
pub(crate) async fn give_credit(
    link: Weak<RefCell<Link>>,
    mut told: mpsc::UnboundedReceiver<Taken>,
) {
    while let Some(first) = told.recv().await {
        let mut taken = vec![first];
        while let Ok(next) = told.try_recv() {
            taken.push(next);
        }
        let Some(link) = link.upgrade() else { return };
        link.borrow_mut().send_credit(&taken);
    }
}
