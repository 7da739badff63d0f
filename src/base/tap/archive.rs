//! A capture as a file: an array for each tensor, and the manifest.

use bytes::Bytes;

use super::{
    Capture, CaptureEnd,
    manifest::{self, CaptureOrigin, Manifest},
};
use crate::{
    error::{Error, Result},
    numpy::{
        npy,
        npz::{self, NpzEntry},
    },
};

/// The archive in parts, in their order; the tensors' bytes are shared with the capture. They are
/// looked at once, for their checksums.
pub fn write(
    origin: &CaptureOrigin<'_>,
    capture: &Capture,
    ended: CaptureEnd,
) -> Result<Vec<Bytes>> {
    let manifest = Manifest::of(origin, capture, ended);
    let text = serde_json::to_vec(&manifest).map_err(|it| Error::internal(it.to_string()))?;
    let mut entries = vec![NpzEntry { name: manifest::NAME.to_owned(), parts: vec![text.into()] }];
    for (request, told) in capture.requests.iter().zip(&manifest.requests) {
        for (edge, told) in request.edges.iter().zip(&told.tensors) {
            let parts = vec![npy::header(&edge.tensor), edge.tensor.data().clone()];
            entries.push(NpzEntry { name: format!("{}.npy", told.array), parts });
        }
    }
    npz::write(entries)
}
