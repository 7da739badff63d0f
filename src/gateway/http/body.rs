//! Receives request bodies: bounded, once, and where their tensors will stay.

use std::{ops::Range, sync::Arc};

use actix_web::{
    HttpRequest,
    dev::Payload,
    http::header::{CONTENT_LENGTH, TRANSFER_ENCODING},
    web,
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use super::{coding, limits::SizeLimit, refusal::Refusal};
use troupe_base::{
    error::{Error, Result},
    tensor::{DataType, Lease, SegmentMut, SegmentPool, Shape, Tensor},
};

const MAX_CHUNKS: usize = 65_536;
/// A refused body is read to its end so that the client sees the answer, up to this.
const MAX_DRAINED: usize = 1 << 30;
/// Bodies below this are cheaper to copy to a worker process than to map.
const MIN_SHARED_BYTES: usize = 64 << 10;
/// Where the first binary tensor begins in a segment is a multiple of this.
const ALIGNMENT: usize = 64;

/// A received body.
#[derive(Clone, Debug)]
pub(super) struct Body {
    /// All of it.
    pub(super) bytes: Bytes,
    /// The segment it lies in and where, if worker processes can map it.
    lease: Option<(Arc<Lease>, usize)>,
}

impl Body {
    /// A body in ordinary memory.
    pub(super) fn plain(bytes: Bytes) -> Body {
        Body { bytes, lease: None }
    }

    /// A tensor over part of the body, never a copy.
    pub(super) fn tensor(
        &self,
        dtype: DataType,
        shape: Shape,
        range: Range<usize>,
    ) -> Result<Tensor> {
        match &self.lease {
            Some((lease, start)) => {
                Tensor::in_segment(dtype, shape, lease, start + range.start..start + range.end)
            }
            None => Tensor::new(dtype, shape, self.bytes.slice(range)),
        }
    }
}

/// How a body is to be received.
pub(super) struct ReceivePlan<'a> {
    /// Most bytes it may have.
    pub(super) limit: SizeLimit,
    /// A big body goes here, its tensors beginning after so many bytes.
    pub(super) shared: Option<(&'a Arc<SegmentPool>, usize)>,
}

/// Receives the body as `plan` says; what is compressed is not yet inflated.
pub(super) async fn receive(
    http: &HttpRequest,
    payload: &mut Payload,
    plan: &ReceivePlan<'_>,
) -> Result<Body, Refusal> {
    let is_chunked = http.headers().contains_key(TRANSFER_ENCODING);
    let length = http.headers().get(CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse().ok());
    let length: usize = length.unwrap_or(0);
    plan.limit.check(length)?;
    let mut sink = match plan.shared {
        Some((pool, header)) if MIN_SHARED_BYTES <= length => shared(pool, header, length)?,
        _ => BodyBuffer::First,
    };
    let mut received = 0;
    let mut chunks = 0;
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| truncated(&error, length, received))?;
        received += chunk.len();
        chunks += usize::from(is_chunked);
        if MAX_CHUNKS < chunks {
            return Err(Refusal::Chunks);
        }
        plan.limit.check(received)?;
        sink = sink.push(chunk, length);
    }
    Ok(sink.finish(received)?)
}

fn truncated(error: &dyn std::fmt::Display, length: usize, received: usize) -> Error {
    if received < length {
        let missing = length - received;
        return Error::invalid(format!(
            "unexpected size for request JSON, expecting {missing} more bytes"
        ));
    }
    Error::invalid(format!("failed to read the request body: {error}"))
}

/// Where the chunks of a body go.
enum BodyBuffer {
    /// Nothing came yet.
    First,
    /// All that came, and the body may well be just this.
    One(Bytes),
    Many(BytesMut),
    /// A segment, and where the next chunk goes.
    Shared(SegmentMut, Range<usize>),
}

fn shared(pool: &Arc<SegmentPool>, header: usize, length: usize) -> Result<BodyBuffer> {
    let start = header.next_multiple_of(ALIGNMENT) - header;
    Ok(BodyBuffer::Shared(pool.take(start + length)?, start..start))
}

impl BodyBuffer {
    fn push(self, chunk: Bytes, length: usize) -> BodyBuffer {
        match self {
            BodyBuffer::First => BodyBuffer::One(chunk),
            BodyBuffer::One(first) => {
                let mut all = BytesMut::with_capacity(length.max(first.len() + chunk.len()));
                all.extend_from_slice(&first);
                all.extend_from_slice(&chunk);
                BodyBuffer::Many(all)
            }
            BodyBuffer::Many(mut all) => {
                all.extend_from_slice(&chunk);
                BodyBuffer::Many(all)
            }
            BodyBuffer::Shared(mut segment, range) => {
                let end = range.end + chunk.len();
                // The protocol's decoder never yields more than the announced length.
                if let Some(place) = segment.bytes_mut().get_mut(range.end..end) {
                    place.copy_from_slice(&chunk);
                }
                BodyBuffer::Shared(segment, range.start..end)
            }
        }
    }

    fn finish(self, received: usize) -> Result<Body> {
        Ok(match self {
            BodyBuffer::First => Body::plain(Bytes::new()),
            BodyBuffer::One(all) => Body::plain(all),
            BodyBuffer::Many(all) => Body::plain(all.freeze()),
            BodyBuffer::Shared(segment, range) => {
                let lease = segment.freeze();
                let bytes = Lease::bytes(&lease, range.start..range.start + received)?;
                Body { bytes, lease: Some((lease, range.start)) }
            }
        })
    }
}

/// The refusal of a request, once the rest of its body is read: nobody wants it, but a client reads
/// no answer before it has sent everything.
pub(super) async fn drained(payload: &mut Payload, refusal: Refusal) -> Refusal {
    let mut drained = 0;
    while !matches!(refusal, Refusal::Chunks)
        && drained <= MAX_DRAINED
        && let Some(Ok(chunk)) = payload.next().await
    {
        drained += chunk.len();
    }
    refusal
}

/// The whole body of a request without tensors, inflated.
pub(super) async fn receive_all(
    http: &HttpRequest,
    payload: web::Payload,
    limit: usize,
) -> Result<Bytes, Refusal> {
    let mut payload = payload.into_inner();
    let limit = SizeLimit::of_json(limit);
    let plan = ReceivePlan { limit, shared: None };
    let body = receive(http, &mut payload, &plan).await;
    match body {
        Ok(body) => coding::inflate(http.headers(), body.bytes, limit).await,
        Err(refusal) => Err(drained(&mut payload, refusal).await),
    }
}
