//! The limit on the size of request bodies, and threads for work that would hold up other
//! connections.

use actix_web::web;

use crate::inference::MAX_BYTES_ON_THREAD;
use troupe_base::{
    budget::{Charge, Reason},
    error::{Error, Result},
};

/// The most bytes a body may have.
#[derive(Clone, Copy)]
pub(super) struct SizeLimit {
    bytes: usize,
    body: BodyKind,
}

/// What a body is called where it is too big.
#[derive(Clone, Copy)]
enum BodyKind {
    Json,
    Mixed,
    Raw,
}

impl SizeLimit {
    /// For a body that is JSON.
    pub(super) fn of_json(bytes: usize) -> SizeLimit {
        SizeLimit { bytes, body: BodyKind::Json }
    }

    /// For JSON with binary tensors behind it.
    pub(super) fn of_mixed(bytes: usize) -> SizeLimit {
        SizeLimit { bytes, body: BodyKind::Mixed }
    }

    /// For one binary tensor.
    pub(super) fn of_raw(bytes: usize) -> SizeLimit {
        SizeLimit { bytes, body: BodyKind::Raw }
    }

    /// So many bytes.
    pub(super) fn bytes(self) -> usize {
        self.bytes
    }

    /// Refuses a body of `size` bytes over the limit; `charge` counts that.
    pub(super) fn check(self, size: usize, charge: &Charge) -> Result<()> {
        if size <= self.bytes {
            return Ok(());
        }
        charge.count_refusal(Reason::Size);
        Err(self.too_large(size))
    }

    /// Triton's text for a body of `size` bytes, which are too many.
    pub(super) fn too_large(self, size: usize) -> Error {
        let limit = self.bytes;
        Error::invalid(match self.body {
            BodyKind::Json => format!(
                "request JSON size of {size} bytes exceeds the maximum allowed input size of \
                 {limit} bytes. Use --http-max-input-size to increase the limit."
            ),
            BodyKind::Mixed => format!(
                "request body has a byte_size ({size} bytes) that exceeds the maximum allowed \
                 value of {limit} bytes. Use --http-max-input-size to increase the limit."
            ),
            BodyKind::Raw => format!(
                "Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value \
                 of {limit} bytes. Use --http-max-input-size to increase the limit."
            ),
        })
    }
}

/// Numbers as text are hardly more than so many times as long as the numbers.
const MAX_TEXT_FACTOR: usize = 16;

/// About how many bytes of tensors there are at least in a body of text.
pub(super) fn least_tensor_bytes(text: usize) -> usize {
    text / MAX_TEXT_FACTOR
}

/// Runs `work` here if it is about few bytes, else on a thread that may be held up.
pub(super) async fn off_thread<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if bytes <= MAX_BYTES_ON_THREAD { work() } else { on_other_thread(work).await }
}

/// Runs `work` on a thread that may be held up.
pub(super) async fn on_other_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = web::block(work).await;
    done.map_err(|_| Error::unavailable("no thread is left for a big request"))?
}
