//! Inflates compressed messages, on a thread that may be held up, up to a limit.

use std::io::Read;

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use tokio::task::spawn_blocking;
use tonic::{Status, codegen::http::HeaderMap};

use crate::grpc::refusal::refuse;
use troupe_base::budget::{Charge, Kind};

/// Even a small message may inflate a thousandfold, so it is not done on this thread.
const MAX_INFLATED_HERE_BYTES: usize = 1 << 10;
/// As much is inflated before it is counted.
const INFLATED_AT_ONCE_BYTES: u64 = 256 << 10;

/// What the messages of a call are compressed with, those that are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageCoding {
    Identity,
    Gzip,
    Deflate,
}

/// What `grpc-encoding` says.
pub(crate) fn coding_of(headers: &HeaderMap) -> Result<MessageCoding, Status> {
    let Some(name) = headers.get("grpc-encoding") else { return Ok(MessageCoding::Identity) };
    match name.as_bytes() {
        b"identity" => Ok(MessageCoding::Identity),
        b"gzip" => Ok(MessageCoding::Gzip),
        b"deflate" => Ok(MessageCoding::Deflate),
        other => {
            let text = format!(
                "Content is compressed with `{}` which isn't supported",
                String::from_utf8_lossy(other)
            );
            let mut status = Status::unimplemented(text);
            let known = "gzip,deflate,identity".parse().expect("it is ASCII");
            status.metadata_mut().insert("grpc-accept-encoding", known);
            Err(status)
        }
    }
}

/// The message as it was before the client compressed it; at most `limit` bytes, which `charge`
/// counts as long as any of them are in use.
pub(super) async fn inflate(
    coding: MessageCoding,
    message: Bytes,
    limit: usize,
    charge: &Charge,
) -> Result<Bytes, Status> {
    if message.len() <= MAX_INFLATED_HERE_BYTES {
        return inflate_here(coding, &message, limit, charge);
    }
    let charge = charge.clone();
    let inflated = spawn_blocking(move || inflate_here(coding, &message, limit, &charge)).await;
    inflated.map_err(|_| Status::unavailable("no thread is left for a compressed message"))?
}

fn inflate_here(
    coding: MessageCoding,
    message: &[u8],
    limit: usize,
    charge: &Charge,
) -> Result<Bytes, Status> {
    match coding {
        // https://grpc.github.io/grpc/core/md_doc_compression.html
        MessageCoding::Identity => Err(Status::internal(
            "protocol error: received message with compressed-flag but no grpc-encoding was \
             specified",
        )),
        MessageCoding::Gzip => read_all(MultiGzDecoder::new(message), limit, charge),
        MessageCoding::Deflate => read_all(ZlibDecoder::new(message), limit, charge),
    }
}

/// Counts what is inflated before there is more of it.
fn read_all(mut from: impl Read, limit: usize, charge: &Charge) -> Result<Bytes, Status> {
    let mut hold = charge.hold(Kind::Received);
    let mut inflated = Vec::new();
    loop {
        let most = (limit as u64).saturating_add(1) - inflated.len() as u64;
        let more = from
            .by_ref()
            .take(most.min(INFLATED_AT_ONCE_BYTES))
            .read_to_end(&mut inflated)
            .map_err(|error| Status::internal(format!("Error decompressing: {error}")))?;
        if limit < inflated.len() {
            return Err(Status::resource_exhausted(format!(
                "Error decompressing: size limit, of {limit} bytes, exceeded while decompressing \
                 message"
            )));
        }
        if more == 0 {
            return Ok(hold.over(inflated.into()));
        }
        hold.grow(more).map_err(refuse)?;
    }
}
