//! A call that is being answered: until its deadline, on a connection that is busy until the answer
//! was sent.

use std::{
    convert::Infallible,
    future::{self, Future},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, http::Response},
};

use super::refusal::deadline_exceeded;
use crate::connections::Busy;

/// Answers go to their connection in pieces of so many bytes, each of which has to leave in time.
pub(super) const MAX_PIECE_BYTES: usize = 64 << 10;
/// Smaller answers are not watched: all calls of a connection together hold little by them.
const MIN_PIECE_BYTES: usize = 4 << 10;

/// The answer of a call, or DEADLINE_EXCEEDED. Dropping it before cancels the call.
pub(super) struct Answering {
    call: BoxFuture<Response<Body>, Infallible>,
    /// To be made before tonic looks at its own clock.
    deadline: Option<Instant>,
    /// Since the answer did not come at once.
    timer: Option<Pin<Box<Sleep>>>,
    busy: Option<Busy>,
}

impl Answering {
    /// Of a call that may take any time.
    pub(super) fn new(
        call: BoxFuture<Response<Body>, Infallible>,
        busy: Option<Busy>,
    ) -> Answering {
        Answering { call, deadline: None, timer: None, busy }
    }

    /// Of a call that is refused.
    pub(super) fn refused(status: Status) -> Answering {
        Answering::new(Box::pin(future::ready(Ok(status.into_http()))), None)
    }

    /// The same until `deadline`.
    pub(super) fn until(self, deadline: Option<Instant>) -> Answering {
        Answering { deadline, ..self }
    }

    fn poll_call(&mut self, context: &mut Context<'_>) -> Poll<Result<Response<Body>, Infallible>> {
        let answer = self.call.as_mut().poll(context);
        let Some(deadline) = self.deadline.filter(|_| answer.is_pending()) else { return answer };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        timer.as_mut().poll(context).map(|()| Ok(deadline_exceeded().into_http()))
    }
}

impl Future for Answering {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.poll_call(context))?;
        let busy = self.busy.take();
        Poll::Ready(Ok(answer.map(|body| Body::new(BusyGrpcBody::new(body, busy)))))
    }
}

/// A response during which its connection is busy.
struct BusyGrpcBody {
    body: Body,
    busy: Option<Busy>,
    /// What of the last frame was not handed to the connection yet.
    rest: Bytes,
    /// Since the connection has not asked for more: it has no window for it.
    waiting: Option<u32>,
}

impl BusyGrpcBody {
    fn new(body: Body, busy: Option<Busy>) -> BusyGrpcBody {
        let mut body = BusyGrpcBody { body, busy, rest: Bytes::new(), waiting: None };
        body.begin_wait();
        body
    }

    fn begin_wait(&mut self) {
        self.waiting = self.busy.as_ref().map(|it| it.connection().unsent().begin_wait());
    }

    fn end_wait(&mut self) {
        if let (Some(busy), Some(half)) = (&self.busy, self.waiting.take()) {
            busy.connection().unsent().end_wait(half);
        }
    }

    fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            match frame {
                Some(Ok(frame)) if is_large(&frame) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        Poll::Ready(Some(Ok(self.next_piece())))
    }

    fn next_piece(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(MAX_PIECE_BYTES));
        Frame::data(match &self.busy {
            Some(busy) => busy.connection().unsent().hand_over(piece),
            None => piece,
        })
    }
}

impl http_body::Body for BusyGrpcBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.end_wait();
        let piece = self.poll_piece(context);
        if let Poll::Ready(Some(Ok(_))) = piece {
            self.begin_wait();
        }
        piece
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.rest.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}

impl Drop for BusyGrpcBody {
    fn drop(&mut self) {
        self.end_wait();
    }
}

fn is_large(frame: &Frame<Bytes>) -> bool {
    frame.data_ref().is_some_and(|it| MIN_PIECE_BYTES <= it.len())
}
