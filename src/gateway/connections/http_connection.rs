//! A connection of HTTP as the dispatcher of its requests reads and writes it: a head that stands
//! still ends it, and one that is idle is taken back from the dispatcher, with its buffers.

use std::{
    cell::Cell,
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    sync::{Arc, LazyLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use memchr::memmem::Finder;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::{
    accept::OpenConnection,
    table::Connection,
    write_watch::{WriteWatch, timed_out},
};
use troupe_base::budget::{Kept, Kind};

/// Between two looks at a connection that nothing is answered on.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Smaller buffers are part of what a connection costs, which the limit of connections bounds.
const MIN_COUNTED_BYTES: usize = 64 << 10;

static HEAD_END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));

/// Where a connection is left when it is taken back.
pub(super) type ReturnSlot = Rc<Cell<Option<OpenConnection>>>;

/// A connection that is lent to a dispatcher.
pub(super) struct HttpConnection {
    /// `None` only while it is dropped, when it goes to `home`.
    open: Option<OpenConnection>,
    home: ReturnSlot,
    served: ServedConnection,
    framing: RequestFraming,
    /// With its limit of writes: how long the head of a request may stand still, too.
    writing: WriteWatch,
    answers: AnswerBuffer,
    idle: IdleWatch,
    is_idle: bool,
}

/// The connection of a request, as its handlers see it.
#[derive(Clone)]
pub struct ServedConnection {
    connection: Arc<Connection>,
    requests: Rc<RequestCount>,
}

/// Of the requests that a dispatcher has decoded.
#[derive(Default)]
struct RequestCount {
    begun: Cell<u32>,
    /// Bytes of the last one's body; `None`: it does not say.
    body: Cell<Option<u64>>,
}

impl ServedConnection {
    /// The connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// A request was decoded; `body`: how many bytes its body has, if it says so.
    pub(super) fn request_began(&self, body: Option<u64>) {
        self.requests.begun.set(self.requests.begun.get().wrapping_add(1));
        self.requests.body.set(body);
    }
}

/// What the dispatcher's buffer for answers has grown to: it keeps it as long as the connection is
/// lent. That for requests is not counted: it would refuse them for having come.
#[derive(Default)]
struct AnswerBuffer {
    most: usize,
    kept: Option<Kept>,
}

impl AnswerBuffer {
    /// So many bytes are in it.
    fn grow(&mut self, bytes: usize, connection: &Connection) {
        if self.most < bytes {
            self.most = bytes;
            let is_large = MIN_COUNTED_BYTES <= bytes;
            self.kept = is_large.then(|| connection.keep(Kind::Other, bytes));
        }
    }
}

/// Looks from time to time whether the connection is idle.
#[derive(Default)]
struct IdleWatch {
    next: Option<Pin<Box<Sleep>>>,
    /// Requests that had begun at the last one.
    begun: u32,
    /// For how long none has.
    quiet: Duration,
}

impl HttpConnection {
    /// Lends the connection; it comes back to `home` when it is idle, and else ends here.
    pub(super) fn new(open: OpenConnection, home: ReturnSlot, stalled: Duration) -> HttpConnection {
        let connection = open.guard.connection().clone();
        HttpConnection {
            open: Some(open),
            home,
            writing: WriteWatch::new(connection.clone(), stalled),
            served: ServedConnection { connection, requests: Rc::default() },
            framing: RequestFraming::default(),
            answers: AnswerBuffer::default(),
            idle: IdleWatch::default(),
            is_idle: false,
        }
    }

    /// What handlers are told.
    pub(super) fn served(&self) -> &ServedConnection {
        &self.served
    }

    fn look_pause(&self) -> Duration {
        let stalled = self.writing.limit();
        if stalled.is_zero() { LOOK_PAUSE } else { LOOK_PAUSE.min(stalled) }
    }

    fn received(&mut self, bytes: &[u8]) {
        let requests = &self.served.requests;
        if self.served.connection.is_busy() || self.framing.is_head_awaited(requests) {
            return self.framing.received(bytes, requests);
        }
        // The first bytes of a request, or what was left of one that is answered already.
        self.idle.quiet = Duration::ZERO;
        self.framing.received(bytes, requests);
        self.framing.unclaimed_at = Some(requests.begun.get());
    }

    /// Looks from time to time, as long as nothing is being answered.
    fn watch_idleness(&mut self, context: &mut Context<'_>) {
        if self.idle.next.is_some() || self.served.connection.is_busy() {
            return;
        }
        let mut next = Box::pin(sleep(self.look_pause()));
        if next.as_mut().poll(context).is_pending() {
            self.idle.next = Some(next);
        }
    }

    /// Nothing is to be read: is it time to end the connection, or to take it back?
    fn look(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pause = self.look_pause();
        let IdleWatch { next, begun, quiet } = &mut self.idle;
        let Some(timer) = next.as_mut().filter(|it| it.is_elapsed()) else {
            return Poll::Pending;
        };
        let requests = &self.served.requests;
        if self.served.connection.is_busy() {
            (*next, *quiet) = (None, Duration::ZERO);
            return Poll::Pending;
        }
        let was = std::mem::replace(begun, requests.begun.get());
        *quiet = if was == *begun { *quiet + pause } else { Duration::ZERO };
        if !quiet.is_zero() && self.framing.is_between(requests) {
            // The dispatcher sees the client's end, and ends without touching the connection.
            self.is_idle = true;
            return Poll::Ready(Ok(()));
        }
        let stalled = self.writing.limit();
        let is_late = !stalled.is_zero() && stalled <= *quiet;
        if is_late && self.framing.is_head_awaited(requests) {
            return Poll::Ready(Err(timed_out("the rest of a request's head did not come")));
        }
        timer.as_mut().reset(Instant::now() + pause);
        // It was set just now.
        timer.as_mut().poll(context).map(Ok)
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        if self.is_idle {
            self.home.set(self.open.take());
        }
    }
}

/// Where requests begin and end in the bytes that came: whether the last ends with them.
#[derive(Default)]
struct RequestFraming {
    /// Bytes since the beginning of a request.
    came: u64,
    /// Bytes of its head, if its end was among the first that came.
    head: Option<u64>,
    /// Requests that had begun before it.
    begun: u32,
    /// Requests that had begun when bytes came that are of none of them.
    unclaimed_at: Option<u32>,
}

impl RequestFraming {
    fn received(&mut self, bytes: &[u8], requests: &RequestCount) {
        if self.is_between(requests) {
            let head = HEAD_END.find(bytes).map(|it| it + HEAD_END.needle().len());
            self.head = head.and_then(|it| u64::try_from(it).ok());
            (self.came, self.begun) = (0, requests.begun.get());
        }
        self.came += bytes.len() as u64;
    }

    /// Have all bytes that came been of requests that begun, to the last of their bodies?
    fn is_between(&self, requests: &RequestCount) -> bool {
        self.came == 0 || self.bytes_of_one(requests) == Some(self.came)
    }

    /// Has a head begun to come that is not complete? Behind several requests that came together, or
    /// one whose bytes nobody counts, it is not seen.
    fn is_head_awaited(&self, requests: &RequestCount) -> bool {
        self.unclaimed_at == Some(requests.begun.get())
            || self.bytes_of_one(requests).is_some_and(|bytes| bytes < self.came)
    }

    /// Bytes of the only request that has begun since they are counted, if it is one and says so.
    fn bytes_of_one(&self, requests: &RequestCount) -> Option<u64> {
        let is_one = requests.begun.get() == self.begun.wrapping_add(1);
        let bytes = || self.head?.checked_add(requests.body.get()?);
        is_one.then(bytes).flatten()
    }
}

impl AsyncRead for HttpConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(open) = &mut this.open else { return Poll::Ready(Ok(())) };
        let before = buffer.filled().len();
        if Pin::new(&mut open.transport).poll_read(context, buffer)?.is_pending() {
            return this.look(context);
        }
        let came = buffer.filled().get(before..).unwrap_or_default();
        if !came.is_empty() {
            this.received(came);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let HttpConnection { open: Some(open), writing, answers, served, .. } = self.get_mut()
        else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        answers.grow(data.len(), &served.connection);
        let written = Pin::new(&mut open.transport).poll_write(context, data);
        writing.watch(context, written, &open.transport)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(open) = &mut this.open else { return Poll::Ready(Ok(())) };
        let flushed = Pin::new(&mut open.transport).poll_flush(context);
        ready!(this.writing.watch_flush(context, flushed, &open.transport))?;
        // The dispatcher flushes whenever it has nothing more to do.
        this.watch_idleness(context);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let HttpConnection { open: Some(open), writing, is_idle: false, .. } = self.get_mut()
        else {
            return Poll::Ready(Ok(()));
        };
        let ended = Pin::new(&mut open.transport).poll_shutdown(context);
        writing.watch_flush(context, ended, &open.transport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request as it comes: its parts, whether it begins after the first of them, and its body.
    fn after(parts: &[&[u8]], bodies: &[Option<u64>]) -> RequestFraming {
        let (mut framing, requests) = (RequestFraming::default(), RequestCount::default());
        framing.received(parts[0], &requests);
        for (index, body) in (1..).zip(bodies) {
            requests.begun.set(index);
            requests.body.set(*body);
        }
        for part in &parts[1..] {
            framing.received(part, &requests);
        }
        framing
    }

    #[test]
    fn only_what_ends_with_a_request_may_be_taken_back_and_what_begins_another_is_awaited() {
        let get = b"GET / HTTP/1.1\r\n\r\n";
        let post = b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nab";
        for (parts, bodies, expected, is_awaited) in [
            (&[&get[..]][..], &[Some(0)][..], true, false),
            (&[b"GET / HT"], &[], false, false),
            (&[&[get, &b"GET"[..]].concat()], &[Some(0)], false, true),
            (&[&[get, &get[..]].concat()], &[Some(0), Some(0)], false, false),
            (&[post], &[Some(3)], false, false),
            (&[post, b"c"], &[Some(3)], true, false),
            (&[post, b"cGET"], &[Some(3)], false, true),
            (&[post, b"c"], &[None], false, false),
        ] {
            let framing = after(parts, bodies);
            let begun = bodies.len() as u32;
            let body = bodies.last().copied().flatten();
            let requests = RequestCount { begun: begun.into(), body: body.into() };
            assert_eq!(framing.is_between(&requests), expected, "{parts:?}");
            assert_eq!(framing.is_head_awaited(&requests), is_awaited, "{parts:?}");
        }
    }
}
