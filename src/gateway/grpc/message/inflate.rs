//! Inflates compressed messages, on a thread that may be held up, up to a limit.

use std::io::Read;

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use tokio::task::spawn_blocking;
use tonic::{Status, codegen::http::HeaderMap};

use crate::{
    grpc::refusal::refuse,
    inflate::{self, InflateError, MAX_INFLATED_HERE_BYTES},
};
use troupe_base::budget::Charge;

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

fn read_all(from: impl Read, limit: usize, charge: &Charge) -> Result<Bytes, Status> {
    inflate::inflate(from, limit, charge).map_err(|error| match error {
        InflateError::Invalid(error) => Status::internal(format!("Error decompressing: {error}")),
        InflateError::TooLarge(_) => Status::resource_exhausted(format!(
            "Error decompressing: size limit, of {limit} bytes, exceeded while decompressing message"
        )),
        InflateError::Exhausted(error) => refuse(error),
    })
}
