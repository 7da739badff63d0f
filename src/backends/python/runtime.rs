//! What the Python models of one server share: their processes, and shared memory for tensors.

use std::time::Instant;

use super::process::reaper;

/// The Python side of one server.
#[derive(Debug, Default)]
pub struct Runtime {}

impl Runtime {
    /// Waits until no worker process is left; kills what is left at the deadline. No worker can be
    /// started after this was called. Blocks.
    pub fn wait_for_workers(&self, deadline: Instant) {
        reaper::wait_for_workers(deadline);
    }
}
