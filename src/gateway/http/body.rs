//! Receives request bodies: bounded, once, and where their tensors will stay.

use std::{ops::Range, sync::Arc};

use actix_web::{
    HttpRequest,
    dev::Payload,
    http::header::{HeaderMap, TRANSFER_ENCODING},
    web,
};
use bytes::{Bytes, BytesMut};

use super::{
    coding::{self, Coding},
    draining::Undrained,
    limits::SizeLimit,
    pace::BodyPace,
    refusal::Refusal,
    server_state::charge,
};
use crate::{
    connections::content_length,
    request_limits::{MIN_SHARED_BYTES, is_early_enough, segment_for},
};
use troupe_base::{
    budget::{Charge, Hold, Kind},
    error::{Error, Result},
    tensor::{DataType, Lease, OwnedPool, SegmentMut, Shape, Tensor},
};

const MAX_CHUNKS: usize = 65_536;
/// What the protocol's decoder keeps for a chunk beside its bytes, until the request has ended: with
/// chunks of one byte that is most of it.
const CHUNK_PLACE_BYTES: usize = size_of::<Bytes>();
/// Where the first binary tensor begins in a segment is a multiple of this.
const ALIGNMENT: usize = 64;

/// A received body.
#[derive(Clone, Debug)]
pub(super) struct Body {
    /// All of it.
    pub(super) bytes: Bytes,
    /// What its memory is counted by.
    pub(super) charge: Charge,
    /// The segment it lies in and where, if worker processes can map it.
    lease: Option<(Arc<Lease>, usize)>,
}

impl Body {
    /// A body in ordinary memory that nobody counts.
    pub(super) fn plain(bytes: Bytes) -> Body {
        Body { bytes, charge: Charge::default(), lease: None }
    }

    /// A body in ordinary memory, counted by `charge` already.
    fn counted(bytes: Bytes, charge: Charge) -> Body {
        Body { bytes, charge, lease: None }
    }

    /// The body as it was before the client compressed it.
    pub(super) async fn inflated(self, coding: Coding, limit: SizeLimit) -> Result<Body, Refusal> {
        if coding == Coding::Identity {
            return Ok(self);
        }
        let bytes = coding::inflate(coding, self.bytes, limit, &self.charge).await?;
        Ok(Body::counted(bytes, self.charge))
    }

    /// A tensor over part of the body, never a copy.
    pub(super) fn tensor(
        &self,
        dtype: DataType,
        shape: Shape,
        range: Range<usize>,
    ) -> Result<Tensor> {
        let tensor = match &self.lease {
            Some((lease, start)) => {
                Tensor::in_segment(dtype, shape, lease, start + range.start..start + range.end)?
            }
            None => Tensor::new(dtype, shape, self.bytes.slice(range))?,
        };
        Ok(tensor.of_counted())
    }
}

/// Shared memory for a big body.
#[derive(Clone)]
pub(super) struct SharedBody {
    /// As the owner of the request uses it.
    pub(super) pool: OwnedPool,
    /// So many bytes come before its tensors.
    pub(super) header: usize,
}

/// How a body is to be received.
pub(super) struct ReceivePlan {
    /// Most bytes it may have.
    pub(super) limit: SizeLimit,
    /// So many are to come; 0 if the client does not say.
    pub(super) announced: usize,
    /// Where a big body goes.
    pub(super) shared: Option<SharedBody>,
    /// What its bytes are counted by as they arrive.
    pub(super) charge: Charge,
}

/// So many bytes are to come; 0 if the client does not say.
pub(super) fn announced(headers: &HeaderMap) -> usize {
    let length = content_length(headers).map(|it| usize::try_from(it).unwrap_or(usize::MAX));
    length.unwrap_or(0)
}

/// Receives the body as `plan` says; what is compressed is not yet inflated.
pub(super) async fn receive(
    http: &HttpRequest,
    payload: &mut Payload,
    plan: ReceivePlan,
) -> Result<Body, Refusal> {
    let is_chunked = http.headers().contains_key(TRANSFER_ENCODING);
    let length = plan.announced;
    plan.limit.check(length, &plan.charge)?;
    plan.charge.check_room(length)?;
    let shared = plan.shared.filter(|_| MIN_SHARED_BYTES <= length);
    let mut hold = plan.charge.hold(Kind::Received);
    let mut buffer = BodyBuffer::First;
    let (mut chunks, mut places) = (0, is_chunked.then(|| plan.charge.hold(Kind::Received)));
    let mut pace = BodyPace::of(http);
    while let Some(chunk) = pace.next(payload, &plan.charge).await? {
        let chunk = chunk.map_err(|error| truncated(&error, length, hold.bytes()))?;
        hold.grow(chunk.len())?;
        if let Some(places) = &mut places {
            places.grow(CHUNK_PLACE_BYTES)?;
            chunks += 1;
        }
        if MAX_CHUNKS < chunks {
            return Err(Refusal::Chunks);
        }
        plan.limit.check(hold.bytes(), &plan.charge)?;
        buffer = buffer.push(chunk, length, hold.bytes(), shared.as_ref());
    }
    Ok(buffer.finish(hold, plan.charge)?)
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

impl BodyBuffer {
    /// Memory for all of `length` announced bytes is taken once enough has `arrived`.
    fn push(
        self,
        chunk: Bytes,
        length: usize,
        arrived: usize,
        shared: Option<&SharedBody>,
    ) -> BodyBuffer {
        let mut all = match self {
            BodyBuffer::First if shared.is_some() => BytesMut::new(),
            BodyBuffer::First => return BodyBuffer::One(chunk),
            BodyBuffer::One(first) => BytesMut::from(first),
            BodyBuffer::Many(all) => all,
            BodyBuffer::Shared(mut segment, range) => {
                let end = range.end + chunk.len();
                // The protocol's decoder never yields more than the announced length.
                if let Some(place) = segment.bytes_mut().get_mut(range.end..end) {
                    place.copy_from_slice(&chunk);
                }
                return BodyBuffer::Shared(segment, range.start..end);
            }
        };
        if let Some(place) = shared
            && let Some(taken) = BodyBuffer::in_segment(&all, length, arrived, place)
        {
            return taken.push(chunk, length, arrived, None);
        }
        if all.capacity() < length && is_early_enough(arrived, length) {
            all.reserve(length - all.len());
        }
        all.extend_from_slice(&chunk);
        BodyBuffer::Many(all)
    }

    /// What came so far, in a segment for all of it; `None` if it is too early, or without shared
    /// memory: ordinary memory will do, though a worker gets a copy then.
    fn in_segment(
        came: &[u8],
        length: usize,
        arrived: usize,
        place: &SharedBody,
    ) -> Option<BodyBuffer> {
        let start = place.header.next_multiple_of(ALIGNMENT) - place.header;
        let mut segment = segment_for(&place.pool, start + length, arrived)?.ok()?;
        let end = start + came.len();
        segment.bytes_mut().get_mut(start..end)?.copy_from_slice(came);
        Some(BodyBuffer::Shared(segment, start..end))
    }

    fn finish(self, hold: Hold, charge: Charge) -> Result<Body> {
        let plain = match self {
            BodyBuffer::First => Bytes::new(),
            BodyBuffer::One(all) => all,
            BodyBuffer::Many(all) => all.freeze(),
            BodyBuffer::Shared(segment, range) => {
                let lease = segment.freeze_counted(hold);
                let bytes = Lease::bytes(&lease, range.clone())?;
                return Ok(Body { bytes, charge, lease: Some((lease, range.start)) });
            }
        };
        Ok(Body::counted(hold.over(plain), charge))
    }
}

/// The refusal of a request, which reads the rest of its body.
pub(super) fn refuse(payload: Payload, refusal: Refusal) -> Refusal {
    if matches!(refusal, Refusal::Chunks | Refusal::Slow(_)) {
        return refusal;
    }
    match Undrained::of(payload) {
        Some(rest) => Refusal::Undrained(refusal.into(), rest),
        None => refusal,
    }
}

/// The whole body of a request without tensors, inflated.
pub(super) async fn receive_all(
    http: &HttpRequest,
    payload: web::Payload,
    limit: usize,
) -> Result<Bytes, Refusal> {
    let mut payload = payload.into_inner();
    let (limit, announced) = (SizeLimit::of_json(limit), announced(http.headers()));
    let body = match charge(http) {
        Ok(charge) => {
            receive(http, &mut payload, ReceivePlan { limit, announced, shared: None, charge })
                .await
        }
        Err(error) => Err(error.into()),
    };
    match body {
        Ok(body) => Ok(body.inflated(coding::of_request(http.headers())?, limit).await?.bytes),
        Err(refusal) => Err(refuse(payload, refusal)),
    }
}
