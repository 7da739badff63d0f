//! The pace of a request's body: one that stands still, or drips, is given up.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use actix_web::{HttpRequest, dev::Payload, error::PayloadError};
use bytes::Bytes;
use futures_util::Stream;

use super::{
    coarse_time::{self, CoarseTimeout},
    refusal::Refusal,
    server_state::state,
};
use crate::pace::is_slow;

/// How a body has come so far.
pub(super) struct Pace {
    /// How long it may stand still, and how long it may be slow at first; zero: for ever.
    stalled: Duration,
    /// The second in which it was first waited for.
    began: Option<u64>,
    received: usize,
}

impl Pace {
    /// Of a body of which nothing came yet.
    pub(super) fn of(http: &HttpRequest) -> Pace {
        let stalled = state(http).map_or(Duration::ZERO, |it| it.settings.stalled);
        Pace { stalled, began: None, received: 0 }
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(
        &mut self,
        payload: &mut Payload,
    ) -> Result<Option<Result<Bytes, PayloadError>>, Refusal> {
        let mut timeout = None;
        let chunk = poll_fn(|context| {
            if let Poll::Ready(chunk) = Pin::new(&mut *payload).poll_next(context) {
                return Poll::Ready(Ok(chunk));
            }
            if self.stalled.is_zero() {
                return Poll::Pending;
            }
            let timeout = timeout.get_or_insert_with(|| CoarseTimeout::new(self.stalled));
            timeout.poll(context).map(|()| Err(Refusal::Slow))
        });
        let chunk = chunk.await?;
        if timeout.is_some() {
            self.began.get_or_insert_with(coarse_time::seconds);
        }
        if let Some(Ok(chunk)) = &chunk {
            self.received += chunk.len();
        }
        let taken = self.began.map_or(0, |it| coarse_time::seconds() - it);
        if self.stalled.as_secs() < taken && is_slow(self.received, Duration::from_secs(taken)) {
            return Err(Refusal::Slow);
        }
        Ok(chunk)
    }
}
