//! Bodies for generated code: each message is handed on once it is there, inflated and walked.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http_body::Frame;
use tonic::{
    Status,
    body::Body,
    codegen::http::{HeaderMap, Request},
};

use super::{
    arriving::{Arriving, Pauses},
    inflate,
    prefix::Prefix,
    walk::{self, Schema},
};
use crate::{connections::Connection, grpc::refusal::refuse, inflate::Coding};
use troupe_base::{
    budget::{Charge, Hold, Kind},
    error::Result as BaseResult,
};

/// Most bytes of a message that is no inference and brings no files.
const MAX_PLAIN_BYTES: usize = 1 << 20;

/// The request with a body that is safe to decode; none of its messages is longer than `limit`
/// bytes, also once inflated.
pub(crate) fn guarded(
    request: Request<Body>,
    limit: usize,
    pauses: Pauses,
) -> Result<Request<Body>, Status> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default();
    let has_files = method == "RepositoryModelLoad";
    let limit = if has_files { limit } else { limit.min(MAX_PLAIN_BYTES) };
    let schema = walk::schema_of(method);
    let (mut head, body) = request.into_parts();
    let coding = coding_of(&mut head.headers)?;
    let charge = open_charge(head.extensions.get()).map_err(refuse)?;
    let hold = charge.hold(Kind::Received);
    let arriving = Arriving::new(body, pauses, &charge);
    let source = GuardedMessages { arriving, coding, limit, schema, charge, hold };
    let messages = stream::unfold(source, |mut source| async move {
        let message = source.next().await.transpose()?;
        Some((message, source))
    });
    let body = GuardedBody { messages: messages.boxed(), ready: VecDeque::new() };
    Ok(Request::from_parts(head, Body::new(body)))
}

/// Begins to count the memory of a request; RESOURCE_EXHAUSTED if there is none for it.
pub(crate) fn open_charge(connection: Option<&Arc<Connection>>) -> BaseResult<Charge> {
    connection.map_or_else(|| Ok(Charge::default()), |it| it.charge())
}

/// What messages are compressed with. Whoever decodes them sees them inflated, so the header goes.
fn coding_of(headers: &mut HeaderMap) -> Result<Coding, Status> {
    let coding = inflate::coding_of(headers)?;
    headers.remove("grpc-encoding");
    Ok(coding)
}

struct GuardedMessages {
    arriving: Arriving,
    coding: Coding,
    limit: usize,
    schema: &'static Schema,
    charge: Charge,
    /// For the last message.
    hold: Hold,
}

impl GuardedMessages {
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(prefix) = self.arriving.prefix(self.limit).await? else {
            return Ok(None);
        };
        self.hold = self.charge.hold(Kind::Received);
        let mut message = self.arriving.take(prefix.length, &mut self.hold).await?;
        if prefix.is_compressed {
            message = inflate::inflate(self.coding, message, self.limit, &self.charge).await?;
        }
        walk::check(&message, self.schema).map_err(refuse)?;
        Ok(Some(message))
    }
}

struct GuardedBody {
    messages: BoxStream<'static, Result<Bytes, Status>>,
    ready: VecDeque<Bytes>,
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let GuardedBody { messages, ready } = self.get_mut();
        if let Some(chunk) = ready.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        messages.poll_next_unpin(cx).map(|message| {
            let message = match message? {
                Ok(message) => message,
                Err(status) => return Some(Err(status)),
            };
            let prefix = Prefix { is_compressed: false, length: message.len() }.bytes();
            ready.push_back(message);
            Some(Ok(Frame::data(Bytes::copy_from_slice(&prefix))))
        })
    }
}
