//! Inflates compressed messages, on a thread that may be held up, up to a limit.

use bytes::Bytes;
use tokio::task::spawn_blocking;
use tonic::{Status, codegen::http::HeaderMap};

use crate::{
    grpc::refusal::refuse,
    inflate::{self, Coding, InflateError, MAX_INFLATED_HERE_BYTES},
};
use troupe_base::budget::Charge;

/// What the messages of a call are compressed with, those that are: what `grpc-encoding` says.
pub(crate) fn coding_of(headers: &HeaderMap) -> Result<Coding, Status> {
    let Some(name) = headers.get("grpc-encoding") else { return Ok(Coding::Identity) };
    name.to_str().ok().and_then(Coding::parse).ok_or_else(|| {
        let name = String::from_utf8_lossy(name.as_bytes());
        let text = format!("Content is compressed with `{name}` which isn't supported");
        let mut status = Status::unimplemented(text);
        let known = "gzip,deflate,identity".parse().expect("it is ASCII");
        status.metadata_mut().insert("grpc-accept-encoding", known);
        status
    })
}

/// The message as it was before the client compressed it; at most `limit` bytes, which `charge`
/// counts as long as any of them are in use.
pub(super) async fn inflate(
    coding: Coding,
    message: Bytes,
    limit: usize,
    charge: &Charge,
) -> Result<Bytes, Status> {
    if coding == Coding::Identity {
        // https://grpc.github.io/grpc/core/md_doc_compression.html
        return Err(Status::internal(
            "protocol error: received message with compressed-flag but no grpc-encoding was \
             specified",
        ));
    }
    let inflated = if message.len() <= MAX_INFLATED_HERE_BYTES {
        inflate::inflate(coding, message, limit, charge)
    } else {
        let charge = charge.clone();
        let work = move || inflate::inflate(coding, message, limit, &charge);
        let no_thread = |_| Status::unavailable("no thread is left for a compressed message");
        spawn_blocking(work).await.map_err(no_thread)?
    };
    inflated.map_err(|error| match error {
        InflateError::Invalid(error) => Status::internal(format!("Error decompressing: {error}")),
        InflateError::TooLarge(_) => Status::resource_exhausted(format!(
            "Error decompressing: size limit, of {limit} bytes, exceeded while decompressing message"
        )),
        InflateError::Exhausted(error) => refuse(error),
    })
}
