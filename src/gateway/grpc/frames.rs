//! Limits the lengths of frames that clients announce before tonic reserves memory for them.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

/// A message that announces more is handed on only when it has arrived: tonic reserves what is
/// announced, and five bytes can announce 4 GiB.
const MAX_TRUSTED_BYTES: usize = 32 << 20;

/// Bytes before each message: a flag and the length.
const HEADER_BYTES: usize = 5;

/// A request body whose messages are at most `limit` bytes long.
pub(super) struct LimitedBody<B> {
    body: B,
    frames: Frames,
}

impl<B> LimitedBody<B> {
    /// Limits the messages of `body`.
    pub(super) fn new(body: B, limit: usize) -> LimitedBody<B> {
        LimitedBody { body, frames: Frames::new(limit, MAX_TRUSTED_BYTES) }
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let LimitedBody { body, frames } = self.get_mut();
        loop {
            if let Some(chunk) = frames.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => frames.push(chunk)?,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.ready.is_empty() && self.frames.held.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Where in the row of messages the bytes are.
struct Frames {
    limit: usize,
    trusted: usize,
    /// The header's bytes so far.
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Bytes the current message still lacks.
    missing: usize,
    /// The current message, while it must be whole first.
    held: VecDeque<Bytes>,
    /// What may be handed on.
    ready: VecDeque<Bytes>,
}

impl Frames {
    fn new(limit: usize, trusted: usize) -> Frames {
        Frames {
            limit,
            trusted,
            header: [0; HEADER_BYTES],
            header_len: 0,
            missing: 0,
            held: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Sorts a chunk that has arrived.
    fn push(&mut self, mut chunk: Bytes) -> Result<(), Status> {
        while !self.held.is_empty() && !chunk.is_empty() {
            let part = chunk.split_to(chunk.len().min(self.missing));
            self.missing -= part.len();
            self.held.push_back(part);
            if self.missing == 0 {
                self.ready.append(&mut self.held);
            }
        }
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            let here = rest.len().min(self.missing);
            rest.advance(here);
            self.missing -= here;
            if rest.is_empty() || !self.read_header(&mut rest)? {
                break;
            }
            if self.trusted < self.missing && rest.len() < self.missing {
                // The header's last byte stays back too, so tonic does not know the length yet.
                let held = chunk.split_off(chunk.len() - rest.len() - 1);
                self.missing -= held.len() - 1;
                self.held.push_back(held);
                break;
            }
        }
        if !chunk.is_empty() {
            self.ready.push_back(chunk);
        }
        Ok(())
    }

    /// Is the header complete? Then `missing` is the message's length.
    fn read_header(&mut self, rest: &mut &[u8]) -> Result<bool, Status> {
        let take = rest.len().min(HEADER_BYTES - self.header_len);
        rest.copy_to_slice(&mut self.header[self.header_len..self.header_len + take]);
        self.header_len += take;
        if self.header_len < HEADER_BYTES {
            return Ok(false);
        }
        self.header_len = 0;
        let [_, length @ ..] = self.header;
        self.missing = u32::from_be_bytes(length) as usize;
        if self.limit < self.missing {
            return Err(Status::resource_exhausted(format!(
                "SERVER: Received message larger than max ({} vs. {})",
                self.missing, self.limit
            )));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of these lengths, each filled with its number.
    fn stream(lengths: &[usize]) -> Vec<u8> {
        let message = |(number, length): (usize, &usize)| {
            let mut bytes = vec![0];
            bytes.extend((*length as u32).to_be_bytes());
            bytes.resize(HEADER_BYTES + length, number as u8 + 1);
            bytes
        };
        lengths.iter().enumerate().flat_map(message).collect()
    }

    #[test]
    fn whatever_the_chunks_every_byte_comes_out_in_order() {
        let sent = stream(&[0, 3, 20, 8, 9, 0, 30, 1]);
        for size in 1..sent.len() + 1 {
            let mut frames = Frames::new(100, 8);
            let mut got = Vec::new();
            for chunk in sent.chunks(size) {
                frames.push(Bytes::copy_from_slice(chunk)).unwrap();
                frames.ready.drain(..).for_each(|it| got.extend_from_slice(&it));
            }
            assert_eq!(got, sent, "chunks of {size}");
        }
    }

    #[test]
    fn a_long_message_is_held_until_it_is_whole() {
        let sent = stream(&[2, 20, 1]);
        let mut frames = Frames::new(100, 8);
        let mut handed_on = 0;
        for (index, byte) in sent.iter().enumerate() {
            frames.push(Bytes::copy_from_slice(&[*byte])).unwrap();
            handed_on += frames.ready.drain(..).map(|it| it.len()).sum::<usize>();
            let whole = if (11..31).contains(&index) { 11 } else { index + 1 };
            assert_eq!(handed_on, whole, "after byte {index}");
        }
    }

    #[test]
    fn a_message_over_the_limit_is_refused_by_its_header() {
        let mut frames = Frames::new(100, 8);
        let status = frames.push(stream(&[2, 101]).into()).unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status.message(), "SERVER: Received message larger than max (101 vs. 100)");
    }
}
