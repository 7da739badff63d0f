//! A gRPC connection: ends one that never says HTTP/2, one whose client takes nothing, and one that
//! is too old.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tonic::transport::server::Connected;

use super::answering::MAX_PIECE_BYTES;
use crate::{
    connections::{Connection, ConnectionGuard, OpenConnection, WriteWatch, timed_out},
    pace::{is_slow_for, look_pause},
    transport::Transport,
};
use troupe_base::budget::Reserved;

/// What a client has to send the preface of HTTP/2, the handshake of TLS before it included.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`.
const PREFACE_BYTES: usize = 24;

/// A connection. It has no buffers: HTTP/2 has its own, reads whole frames, and writes large data
/// from where it lies.
pub(super) struct GrpcConnection {
    // Before the stream: it goes first.
    guard: ConnectionGuard,
    stream: Transport,
    /// Until the preface has come: what is missing of it, and until when.
    preface: Option<(usize, Pin<Box<Sleep>>)>,
    /// With its limit of writes: how long an answer may wait for the windows of HTTP/2, too.
    writing: WriteWatch,
    /// While there may be answers: when it is looked whether they leave.
    look: Option<Pin<Box<Sleep>>>,
    /// When it was looked whether they had left.
    looked_at: Instant,
    /// When it is closed, whatever goes on over it.
    end: Option<Pin<Box<Sleep>>>,
    /// What is counted as long as the connection is open: one of its thread's, and its window.
    _counted: (Arc<()>, Option<Reserved>),
}

/// How long connections may go on.
#[derive(Clone, Copy)]
pub(super) struct ConnectionTimes {
    /// A client may take nothing of what is sent; zero: for ever.
    pub(super) stalled: Duration,
    /// Since they were accepted; `None`: for ever.
    pub(super) end: Option<Duration>,
}

impl GrpcConnection {
    pub(super) fn new(
        opened: OpenConnection,
        window: Option<Reserved>,
        times: ConnectionTimes,
    ) -> GrpcConnection {
        let OpenConnection { guard, transport, of_thread } = opened;
        GrpcConnection {
            stream: transport,
            preface: Some((PREFACE_BYTES, Box::pin(sleep(PREFACE_TIMEOUT)))),
            writing: WriteWatch::new(guard.connection().clone(), times.stalled),
            guard,
            look: None,
            looked_at: Instant::now(),
            end: times.end.map(|end| Box::pin(sleep(end))),
            _counted: (of_thread, window),
        }
    }

    /// Fails if an answer waits for windows of HTTP/2 that its client does not open.
    fn look_for_unsent(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let connection = self.guard.connection();
        let stalled = self.writing.limit();
        let may_wait = || connection.is_busy() || !connection.unsent().is_empty();
        if self.look.as_ref().is_some_and(|it| it.is_elapsed()) {
            // One of which a piece is late takes less than a piece between two looks.
            let would_be_slow = |held| is_slow_for(held, MAX_PIECE_BYTES, 2 * look_pause(stalled));
            let is_due = stalled <= self.looked_at.elapsed()
                || connection.held_of_short_memory().is_some_and(would_be_slow);
            // A client that takes too little from the socket is for another watch.
            if is_due && !self.writing.is_blocked() {
                self.looked_at = Instant::now();
                if !connection.unsent().turn() {
                    return Err(timed_out("the client opens no window for an answer"));
                }
            }
            self.look = None;
        }
        if self.look.is_none() && !stalled.is_zero() && may_wait() {
            let mut look = Box::pin(sleep(look_pause(stalled)));
            if look.as_mut().poll(context).is_pending() {
                self.look = Some(look);
            }
        }
        Ok(())
    }
}

impl Connected for GrpcConnection {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Arc<Connection> {
        self.guard.connection().clone()
    }
}

impl AsyncRead for GrpcConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_pending() {
            self.look_for_unsent(context)?;
        }
        if let Some(end) = &mut self.end
            && read.is_pending()
            && end.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(timed_out("the connection is too old")));
        }
        let Some((missing, until)) = &mut self.preface else { return read };
        *missing = missing.saturating_sub(buffer.filled().len() - before);
        if *missing == 0 {
            self.preface = None;
        } else if read.is_pending() {
            return until.as_mut().poll(context).map(|()| Err(timed_out("no preface came")));
        }
        read
    }
}

impl AsyncWrite for GrpcConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let GrpcConnection { stream, writing, .. } = self.get_mut();
        let written = Pin::new(&mut *stream).poll_write(context, data);
        writing.watch(context, written, stream)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let GrpcConnection { stream, writing, .. } = self.get_mut();
        let written = Pin::new(&mut *stream).poll_write_vectored(context, data);
        writing.watch(context, written, stream)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let GrpcConnection { stream, writing, .. } = self.get_mut();
        let flushed = Pin::new(&mut *stream).poll_flush(context);
        writing.watch_flush(context, flushed, stream)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let GrpcConnection { stream, writing, .. } = self.get_mut();
        let ended = Pin::new(&mut *stream).poll_shutdown(context);
        writing.watch_flush(context, ended, stream)
    }
}
