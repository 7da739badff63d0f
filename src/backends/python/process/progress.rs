//! Progress of a worker: a shared counter of the groups it has begun, read when it is late or dead.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// The worker maps so many bytes.
const PAGE_BYTES: u64 = 4096;

/// A page with one count, of the groups the worker has begun to execute, in the order they came.
pub(crate) struct Progress(OwnedFd);

impl Progress {
    /// Nothing is begun.
    pub(crate) fn new() -> rustix::io::Result<Progress> {
        let fd = memfd_create("troupe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, PAGE_BYTES)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Progress(fd))
    }

    /// To be sent to the worker.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// How many groups were begun. Read, not mapped: it is asked for seldom.
    pub(crate) fn begun(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::pread(&self.0, &mut count, 0) {
            Ok(8) => u64::from_le_bytes(count),
            // It cannot happen to sealed memory; then nothing may be executed again.
            _ => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_worker_writes_is_read() {
        let progress = Progress::new().unwrap();
        assert_eq!(progress.begun(), 0);
        rustix::io::pwrite(progress.fd(), &7_u64.to_le_bytes(), 0).unwrap();
        assert_eq!(progress.begun(), 7);
        assert!(ftruncate(progress.fd(), 0).is_err());
    }
}
