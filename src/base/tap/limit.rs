//! The bytes that all taps together may hold.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Shared by all taps of a server.
#[derive(Debug)]
pub struct Limit {
    most: usize,
    reserved: Mutex<usize>,
}

impl Limit {
    /// So many bytes together.
    pub fn new(most: usize) -> Arc<Limit> {
        Arc::new(Limit { most, reserved: Mutex::new(0) })
    }

    /// The bytes of all taps together.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Bytes for one tap, given back when it is dropped; an error while others hold too many.
    pub fn reserve(self: &Arc<Limit>, bytes: usize) -> Result<Reserved> {
        let mut reserved = self.reserved.lock();
        let left = self.most - *reserved;
        if left < bytes {
            return Err(Error::unavailable(format!(
                "other taps leave {left} of the {} bytes that all may hold together, asked for \
                 {bytes}: wait for their end, ask for less with 'max_bytes', or allow more with \
                 --tap-max-bytes",
                self.most
            )));
        }
        *reserved += bytes;
        Ok(Reserved { limit: self.clone(), bytes })
    }
}

/// Bytes that others cannot have until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    limit: Arc<Limit>,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        *self.limit.reserved.lock() -= self.bytes;
    }
}
