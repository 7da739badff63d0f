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
use crate::pace::{ArrivalPace, Slow, look_pause};
use troupe_base::budget::Charge;

/// How a body has come so far.
pub(super) struct BodyPace {
    /// How long it may stand still, or be slow; zero: for ever.
    stalled: Duration,
    /// The second in which it was first waited for.
    waited_since: Option<u64>,
    arrival: ArrivalPace,
}

impl BodyPace {
    /// Of a body of which nothing came yet.
    pub(super) fn of(http: &HttpRequest) -> BodyPace {
        let stalled = state(http).map_or(Duration::ZERO, |it| it.settings.stalled);
        BodyPace { stalled, waited_since: None, arrival: ArrivalPace::default() }
    }

    /// The next bytes, which `charge` counts; `None` at the end.
    pub(super) async fn next(
        &mut self,
        payload: &mut Payload,
        charge: &Charge,
    ) -> Result<Option<Result<Bytes, PayloadError>>, Refusal> {
        let mut wait = None;
        let chunk = poll_fn(|context| {
            if let Poll::Ready(chunk) = Pin::new(&mut *payload).poll_next(context) {
                return Poll::Ready(Ok(chunk));
            }
            if self.stalled.is_zero() {
                return Poll::Pending;
            }
            let wait = wait.get_or_insert_with(|| Wait::new(self.stalled));
            self.waited_since.get_or_insert(wait.since);
            while wait.look.poll(context).is_ready() {
                let checked = wait.go_on(self.stalled).and_then(|()| self.check(0, charge));
                if let Err(slow) = checked {
                    return Poll::Ready(Err(Refusal::Slow(slow)));
                }
            }
            Poll::Pending
        });
        let chunk = chunk.await?;
        if let Some(Ok(chunk)) = &chunk {
            self.check(chunk.len(), charge).map_err(Refusal::Slow)?;
        }
        Ok(chunk)
    }

    /// More has come.
    fn check(&mut self, bytes: usize, charge: &Charge) -> Result<(), Slow> {
        let Some(since) = self.waited_since else {
            self.arrival.came_at_once(bytes);
            return Ok(());
        };
        let now = Duration::from_secs(coarse_time::seconds() - since);
        self.arrival.check(bytes, now, self.stalled, charge)
    }
}

/// A wait for bytes.
struct Wait {
    since: u64,
    look: CoarseTimeout,
}

impl Wait {
    fn new(stalled: Duration) -> Wait {
        Wait { since: coarse_time::seconds(), look: CoarseTimeout::new(look_pause(stalled)) }
    }

    /// Waits until the next look, unless it has waited for longer than `stalled`.
    fn go_on(&mut self, stalled: Duration) -> Result<(), Slow> {
        let waited = Duration::from_secs(coarse_time::seconds() - self.since);
        let left = stalled.checked_sub(waited).ok_or(Slow::Drips)?;
        self.look = CoarseTimeout::new(look_pause(left));
        Ok(())
    }
}
