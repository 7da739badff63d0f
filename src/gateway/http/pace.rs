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
use crate::pace::ArrivalPace;

/// How a body has come so far.
pub(super) struct Pace {
    /// How long it may stand still, or be slow; zero: for ever.
    stalled: Duration,
    /// The second in which it was first waited for, and how it came since.
    waited: Option<(u64, ArrivalPace)>,
}

impl Pace {
    /// Of a body of which nothing came yet.
    pub(super) fn of(http: &HttpRequest) -> Pace {
        let stalled = state(http).map_or(Duration::ZERO, |it| it.settings.stalled);
        Pace { stalled, waited: None }
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
            self.waited.get_or_insert_with(|| (coarse_time::seconds(), ArrivalPace::default()));
        }
        if let (Some((since, arrival)), Some(Ok(chunk))) = (&mut self.waited, &chunk) {
            let now = Duration::from_secs(coarse_time::seconds() - *since);
            if arrival.is_slow_after(chunk.len(), now, self.stalled) {
                return Err(Refusal::Slow);
            }
        }
        Ok(chunk)
    }
}
