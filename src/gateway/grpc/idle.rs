//! Ends calls whose message does not go on: opened, begun, and left.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// Bytes before each message: a flag and the length.
const HEADER_BYTES: usize = 5;

/// A request body that fails when nothing comes for too long although something is to come.
pub(super) struct IdleBody<B> {
    body: B,
    /// Between its messages a client may be silent for as long as it likes.
    is_stream: bool,
    place: MessagePlace,
    limit: Duration,
    /// Since nothing came: when that is too long.
    until: Option<Pin<Box<Sleep>>>,
}

impl<B> IdleBody<B> {
    /// `limit`: how long a message may stand still.
    pub(super) fn new(body: B, is_stream: bool, limit: Duration) -> IdleBody<B> {
        IdleBody { body, is_stream, place: MessagePlace::default(), limit, until: None }
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for IdleBody<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let IdleBody { body, is_stream, place, limit, until } = self.get_mut();
        let frame = Pin::new(body).poll_frame(context);
        if let Poll::Ready(frame) = frame {
            *until = None;
            if let (true, Some(Ok(frame))) = (*is_stream, &frame)
                && let Some(chunk) = frame.data_ref()
            {
                place.advance(chunk);
            }
            return Poll::Ready(frame);
        }
        if *is_stream && !place.is_in_message() {
            return Poll::Pending;
        }
        let until = until.get_or_insert_with(|| Box::pin(sleep(*limit)));
        until.as_mut().poll(context).map(|()| {
            let text = format!("no more of the request came for {} s", limit.as_secs_f32());
            Some(Err(Status::aborted(text)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Where in the row of messages the bytes are.
#[derive(Default)]
struct MessagePlace {
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Bytes the current message still lacks.
    missing: usize,
}

impl MessagePlace {
    fn advance(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let skipped = self.missing.min(chunk.len());
            chunk = &chunk[skipped..];
            self.missing -= skipped;
            let taken = (HEADER_BYTES - self.header_len).min(chunk.len());
            self.header[self.header_len..self.header_len + taken].copy_from_slice(&chunk[..taken]);
            chunk = &chunk[taken..];
            self.header_len += taken;
            if self.header_len == HEADER_BYTES {
                self.header_len = 0;
                let [_, length @ ..] = self.header;
                self.missing = u32::from_be_bytes(length) as usize;
            }
        }
    }

    fn is_in_message(&self) -> bool {
        0 < self.missing || 0 < self.header_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_told_from_a_message_that_stands_still() {
        let sent = [&[0, 0, 0, 0, 3, 1, 2, 3][..], &[0, 0, 0, 0, 0], &[1, 0, 0, 0, 1, 9]].concat();
        let between = [0, 8, 13, 19];
        for size in 1..sent.len() + 1 {
            let mut place = MessagePlace::default();
            let mut read = 0;
            for chunk in sent.chunks(size) {
                place.advance(chunk);
                read += chunk.len();
                assert_eq!(place.is_in_message(), !between.contains(&read), "{size}: {read}");
            }
        }
    }
}
