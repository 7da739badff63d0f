//! Drains the rest of a refused body while the answer is on its way: a client that still sends
//! would not read it otherwise. Up to a limit; then the connection is closed.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use actix_web::{
    HttpResponse,
    body::{BodySize, BoxBody, MessageBody},
    dev::Payload,
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::time::{Sleep, sleep};

/// More of a refused body is not read.
const MAX_DRAINED_BYTES: usize = 2 << 20;
/// Nor is it read for longer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The rest of a refused body, for the response that says so.
pub(super) struct Undrained(RefCell<Option<Payload>>);

impl fmt::Debug for Undrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undrained")
    }
}

impl Undrained {
    /// What is left of `payload`; `None` if all of it has come.
    pub(super) fn of(mut payload: Payload) -> Option<Undrained> {
        let mut read = 0;
        loop {
            match payload.next().now_or_never() {
                Some(Some(Ok(chunk))) if read < MAX_DRAINED_BYTES => read += chunk.len(),
                Some(None | Some(Err(_))) => return None,
                _ => return Some(Undrained(RefCell::new(Some(payload)))),
            }
        }
    }

    /// The response, which ends when the rest is read, or else with the connection.
    pub(super) fn read_during(&self, response: HttpResponse) -> HttpResponse {
        let Some(payload) = self.0.borrow_mut().take() else { return response };
        response.map_body(|_, body| {
            let until = Box::pin(sleep(DRAIN_TIMEOUT));
            BoxBody::new(DrainingBody { body, payload, drained: 0, until })
        })
    }
}

/// A response's body; when it is sent, what the client still sends is read.
struct DrainingBody {
    body: BoxBody,
    payload: Payload,
    drained: usize,
    until: Pin<Box<Sleep>>,
}

impl MessageBody for DrainingBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        if let Some(part) = ready!(Pin::new(&mut self.body).poll_next(cx)) {
            return Poll::Ready(Some(part));
        }
        let too_much = || Poll::Ready(Some(Err("the rest of the body is not read".into())));
        loop {
            if MAX_DRAINED_BYTES < self.drained || self.until.as_mut().poll(cx).is_ready() {
                return too_much();
            }
            match ready!(Pin::new(&mut self.payload).poll_next(cx)) {
                Some(Ok(chunk)) => self.drained += chunk.len(),
                Some(Err(_)) | None => return Poll::Ready(None),
            }
        }
    }
}
