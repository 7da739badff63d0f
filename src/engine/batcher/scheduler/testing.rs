//! Requests for tests of schedulers.

use std::time::Instant;

use troupe_base::{
    request::{Pending, Reply, Request},
    tensor::{DataType, Tensor},
};

/// A request of so many rows of so many bytes, in the queue since then.
pub(super) fn waiting(rows: u32, width: i64, since: Instant) -> Pending {
    let bytes = vec![0u8; rows as usize * width as usize];
    let shape = [i64::from(rows), width].into_iter().collect();
    let input = Tensor::new(DataType::Uint8, shape, bytes.into()).unwrap();
    let request = Request { inputs: vec![Some(input)], batch: rows, ..Request::default() };
    let (sender, _) = tokio::sync::oneshot::channel();
    Pending { request, reply: Reply::new_at(sender, since) }
}
