//! The pace of a request's body: one that stands still, or drips, is given up.

use std::time::{Duration, Instant};

use actix_web::{HttpRequest, dev::Payload, error::PayloadError};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::{refusal::Refusal, server_state::state};

/// A body that came with less since its beginning holds its connection for nothing.
const MIN_BYTES_PER_SECOND: u128 = 500;

/// How a body has come so far.
pub(super) struct Pace {
    /// How long it may stand still, and how long it may be slow at first; zero: for ever.
    stalled: Duration,
    began: Option<Instant>,
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
        if self.stalled.is_zero() {
            return Ok(payload.next().await);
        }
        let began = *self.began.get_or_insert_with(Instant::now);
        let chunk = timeout(self.stalled, payload.next()).await.map_err(|_| Refusal::Slow)?;
        if let Some(Ok(chunk)) = &chunk {
            self.received += chunk.len();
            let taken = began.elapsed();
            if self.stalled < taken && is_slow(self.received, taken) {
                return Err(Refusal::Slow);
            }
        }
        Ok(chunk)
    }
}

fn is_slow(received: usize, taken: Duration) -> bool {
    (received as u128) * 1000 < MIN_BYTES_PER_SECOND * taken.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drips_are_slow_and_slow_links_are_not() {
        for (received, seconds, expected) in [
            (31, 31, true),
            (15_499, 31, true),
            (15_500, 31, false),
            (usize::MAX, 1 << 40, false),
            (0, 1, true),
        ] {
            assert_eq!(is_slow(received, Duration::from_secs(seconds)), expected, "{received}");
        }
    }
}
