//! The bytes of a request's body as they arrive: memory follows what has come, never what was
//! announced.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body as _, Frame};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status, body::Body};

use super::{
    prefix::{PREFIX_BYTES, Prefix},
    wire::{self, Malformed, TRUNCATED},
};
use crate::{
    grpc::refusal::refuse,
    pace::{ArrivalPace, Slow, look_pause},
    request_limits::{MIN_EARLY_BYTES, is_early_enough},
};
use troupe_base::budget::{Charge, Hold, Reason};

/// How long a client may send nothing although it has not come to its end; zero: for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    between_messages: Duration,
    in_message: Duration,
}

impl Pauses {
    /// Of a call with one message.
    pub(crate) fn of_one(stalled: Duration) -> Pauses {
        Pauses { between_messages: stalled, in_message: stalled }
    }

    /// Of a call with a row of messages: between them its client has any time.
    pub(crate) fn of_stream(stalled: Duration) -> Pauses {
        Pauses { between_messages: Duration::ZERO, in_message: stalled }
    }
}

/// What a client sends with one call.
pub(crate) struct Arriving {
    /// `None` once nothing more comes.
    body: Option<Body>,
    pauses: Pauses,
    pace: MessagePace,
    /// What came and was not taken yet.
    chunk: Bytes,
    /// How many bytes were taken.
    taken: usize,
}

/// How a message comes.
#[derive(Default)]
struct MessagePace {
    /// When it had to be waited for first.
    waited_since: Option<Instant>,
    arrival: ArrivalPace,
    /// Counts what the call holds.
    charge: Charge,
}

impl MessagePace {
    /// Nothing of it came yet.
    fn new(charge: Charge) -> MessagePace {
        MessagePace { charge, ..MessagePace::default() }
    }

    /// More has come. ABORTED: too slowly, for longer than `limit`.
    fn check(&mut self, bytes: usize, limit: Duration) -> Result<(), Status> {
        let Some(since) = self.waited_since else {
            self.arrival.came_at_once(bytes);
            return Ok(());
        };
        let checked = self.arrival.check(bytes, since.elapsed(), limit, &self.charge);
        checked.map_err(|slow: Slow| {
            Status::aborted(format!("the request came too slowly{}", slow.reason()))
        })
    }
}

impl Arriving {
    /// All of a call's messages; `charge` counts what the call holds.
    pub(crate) fn new(body: Body, pauses: Pauses, charge: &Charge) -> Arriving {
        let (body, pace) = (Some(body), MessagePace::new(charge.clone()));
        Arriving { body, pauses, pace, chunk: Bytes::new(), taken: 0 }
    }

    /// Bytes that are there.
    pub(super) fn whole(bytes: Bytes) -> Arriving {
        let pauses = Pauses::of_one(Duration::ZERO);
        Arriving { body: None, pauses, pace: MessagePace::default(), chunk: bytes, taken: 0 }
    }

    /// What has come and was not taken.
    pub(super) fn here(&self) -> &Bytes {
        &self.chunk
    }

    /// How many bytes were taken so far.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Waits until there is something to take; `false` if nothing more comes.
    pub(super) async fn more(&mut self) -> Result<bool, Status> {
        self.wait(self.pauses.in_message).await
    }

    async fn wait(&mut self, limit: Duration) -> Result<bool, Status> {
        while self.chunk.is_empty() {
            let Some(body) = &mut self.body else { return Ok(false) };
            match next_frame(body, limit, &mut self.pace).await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => {
                        self.pace.check(chunk.len(), limit)?;
                        self.chunk = chunk;
                    }
                    // Trailers: nothing of a request is in them.
                    Err(_) => self.body = None,
                },
                // A client that takes its call back does not want to know more.
                Some(Err(status)) if status.code() == Code::Cancelled => self.body = None,
                Some(Err(status)) => {
                    self.body = None;
                    return Err(status);
                }
                None => self.body = None,
            }
        }
        Ok(true)
    }

    /// The prefix of the next message; `None` after the last one. RESOURCE_EXHAUSTED, and counted,
    /// if the message is larger than `limit`.
    pub(super) async fn prefix(&mut self, limit: usize) -> Result<Option<Prefix>, Status> {
        if !self.wait(self.pauses.between_messages).await? {
            return Ok(None);
        }
        self.pace = MessagePace::new(std::mem::take(&mut self.pace.charge));
        let mut bytes = [0; PREFIX_BYTES];
        for byte in &mut bytes {
            *byte = self.byte().await?;
        }
        self.pace.arrival.came_at_once(self.chunk.len());
        let prefix = Prefix::read(bytes)?;
        let length = prefix.length;
        if limit < length {
            self.pace.charge.count_refusal(Reason::Size);
            return Err(Status::resource_exhausted(format!(
                "SERVER: Received message larger than max ({length} vs. {limit})"
            )));
        }
        Ok(Some(prefix))
    }

    async fn byte(&mut self) -> Result<u8, Status> {
        if !self.more().await? {
            return Err(unexpected_end());
        }
        self.taken += 1;
        Ok(self.chunk.get_u8())
    }

    /// A varint, of a message that has `left` more bytes.
    pub(super) async fn varint(&mut self, left: &mut usize) -> Result<u64, Status> {
        let here = &self.chunk[..self.chunk.len().min(*left)];
        if let Some((value, length)) = wire::varint(here).map_err(malformed)? {
            self.chunk.advance(length);
            self.taken += length;
            *left -= length;
            return Ok(value);
        }
        // It lies across chunks, or the message ends in it.
        let mut bytes = [0; 10];
        for count in 1..=bytes.len() {
            *left = left.checked_sub(1).ok_or_else(|| malformed(TRUNCATED))?;
            bytes[count - 1] = self.byte().await?;
            if let Some((value, _)) = wire::varint(&bytes[..count]).map_err(malformed)? {
                return Ok(value);
            }
        }
        Err(malformed(TRUNCATED))
    }

    /// Leaves out `length` bytes.
    pub(super) async fn skip(&mut self, mut length: usize) -> Result<(), Status> {
        while 0 < length {
            length -= self.part(length).await?.len();
        }
        Ok(())
    }

    /// `length` bytes: a slice of what has come if they came at once, else a copy. `hold` counts
    /// them as they come; RESOURCE_EXHAUSTED if there is no room for more.
    pub(super) async fn take(&mut self, length: usize, hold: &mut Hold) -> Result<Bytes, Status> {
        if length <= self.chunk.len() {
            hold.grow(length).map_err(refuse)?;
            self.taken += length;
            return Ok(self.chunk.split_to(length));
        }
        let mut copy = Vec::with_capacity(if length <= MIN_EARLY_BYTES { length } else { 0 });
        while copy.len() < length {
            let part = self.part(length - copy.len()).await?;
            hold.grow(part.len()).map_err(refuse)?;
            if is_early_enough(copy.len() + part.len(), length) {
                copy.reserve_exact(length - copy.len());
            }
            copy.extend_from_slice(&part);
        }
        Ok(copy.into())
    }

    /// The next bytes, at least one and at most `most`.
    pub(super) async fn part(&mut self, most: usize) -> Result<Bytes, Status> {
        if !self.more().await? {
            return Err(unexpected_end());
        }
        let part = self.chunk.split_to(self.chunk.len().min(most));
        self.taken += part.len();
        Ok(part)
    }
}

/// What comes next of a body; ABORTED if nothing does within `limit`, zero: however long it takes.
async fn next_frame(
    body: &mut Body,
    limit: Duration,
    pace: &mut MessagePace,
) -> Option<Result<Frame<Bytes>, Status>> {
    let mut wait = None;
    poll_fn(|cx| {
        let frame = Pin::new(&mut *body).poll_frame(cx);
        if frame.is_ready() || limit.is_zero() {
            return frame;
        }
        let (since, look) = wait.get_or_insert_with(|| {
            let pause = look_pause(limit);
            (Instant::now(), Box::pin(sleep(pause)))
        });
        pace.waited_since.get_or_insert(*since);
        while look.as_mut().poll(cx).is_ready() {
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                let text = format!("no more of the request came for {} s", limit.as_secs_f32());
                return Poll::Ready(Some(Err(Status::aborted(text))));
            }
            if let Err(status) = pace.check(0, limit) {
                return Poll::Ready(Some(Err(status)));
            }
            look.as_mut().reset(Instant::now() + look_pause(left));
        }
        Poll::Pending
    })
    .await
}

fn unexpected_end() -> Status {
    Status::internal("Unexpected EOF decoding stream.")
}

/// The status for bytes that are no message.
pub(super) fn malformed(malformed: Malformed) -> Status {
    Status::internal(malformed.to_string())
}
