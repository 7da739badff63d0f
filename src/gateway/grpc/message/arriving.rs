//! The bytes of a request's body as they arrive: memory follows what has come, never what was
//! announced.

use std::{future::poll_fn, pin::Pin};

use bytes::{Buf, Bytes};
use http_body::Body as _;
use tonic::{Code, Status, body::Body};

use super::wire::{self, Malformed, TRUNCATED};
use crate::{grpc::refusal::refuse, request_limits::MIN_ARRIVED_PART};
use troupe_base::budget::Hold;

/// Bytes before each message: a flag and the length.
const HEADER_BYTES: usize = 5;

/// A row of bytes announced as at most this long is given its memory at once, a longer
/// one once `MIN_ARRIVED_PART` of it has come.
const MIN_EARLY_BYTES: usize = 64 << 10;

/// What a client sends with one call.
pub(crate) struct Arriving {
    /// `None` once nothing more comes.
    body: Option<Body>,
    /// What came and was not taken yet.
    chunk: Bytes,
    /// How many bytes were taken.
    taken: usize,
}

/// What stands before a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) is_compressed: bool,
    pub(super) length: usize,
}

impl Arriving {
    /// All of a call's messages.
    pub(crate) fn new(body: Body) -> Arriving {
        Arriving { body: Some(body), chunk: Bytes::new(), taken: 0 }
    }

    /// Bytes that are there.
    pub(super) fn whole(bytes: Bytes) -> Arriving {
        Arriving { body: None, chunk: bytes, taken: 0 }
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
        while self.chunk.is_empty() {
            let Some(body) = &mut self.body else { return Ok(false) };
            match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => self.chunk = chunk,
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

    /// The header of the next message; `None` after the last one.
    pub(super) async fn header(&mut self, limit: usize) -> Result<Option<Header>, Status> {
        if !self.more().await? {
            return Ok(None);
        }
        let mut header = [0; HEADER_BYTES];
        for byte in &mut header {
            *byte = self.byte().await?;
        }
        let [flag, length @ ..] = header;
        let is_compressed = match flag {
            0 => false,
            1 => true,
            _ => {
                return Err(Status::internal(format!(
                    "protocol error: received message with invalid compression flag: {flag} (valid \
                     flags are 0 and 1), while sending request"
                )));
            }
        };
        let length = u32::from_be_bytes(length) as usize;
        if limit < length {
            return Err(Status::resource_exhausted(format!(
                "SERVER: Received message larger than max ({length} vs. {limit})"
            )));
        }
        Ok(Some(Header { is_compressed, length }))
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

/// Has so much of `length` bytes arrived that memory for all of them may be taken?
pub(super) fn is_early_enough(arrived: usize, length: usize) -> bool {
    length <= MIN_EARLY_BYTES || length / MIN_ARRIVED_PART <= arrived
}

fn unexpected_end() -> Status {
    Status::internal("Unexpected EOF decoding stream.")
}

/// The status for bytes that are no message.
pub(super) fn malformed(malformed: Malformed) -> Status {
    Status::internal(malformed.to_string())
}
