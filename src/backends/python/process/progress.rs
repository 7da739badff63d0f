//! Progress of a worker: a shared counter of the groups it has begun, and which of them it is not to
//! begin any more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// The worker maps so many bytes.
const PAGE_BYTES: u64 = 4096;

/// Where the page says from which group on they are taken back, and up to which one. `worker.py` has
/// the same.
const TAKEN_FROM_AT: u64 = 8;
const TAKEN_TO_AT: u64 = 16;

/// A page that the worker writes one number to, how many groups it has begun to execute, in the
/// order they came; and we two.
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

    /// The worker is not to begin the groups `from..to`, counted from its first one. It answers
    /// those that it had not begun as if they were to be executed anew. Whoever asks what was begun
    /// after this knows what will not be.
    pub(crate) fn take_back(&self, from: u64, to: u64) -> rustix::io::Result<()> {
        let write = |at, number: u64| match rustix::io::pwrite(&self.0, &number.to_le_bytes(), at) {
            Ok(8) => Ok(()),
            Ok(_) => Err(rustix::io::Errno::IO),
            Err(error) => Err(error),
        };
        // No group is in between.
        write(TAKEN_FROM_AT, u64::MAX)?;
        write(TAKEN_TO_AT, to)?;
        write(TAKEN_FROM_AT, from)
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

    #[test]
    fn what_is_taken_back_stands_where_the_worker_reads_it() {
        let progress = Progress::new().unwrap();
        progress.take_back(3, 9).unwrap();
        let mut page = [0; 24];
        rustix::io::pread(progress.fd(), &mut page, 0).unwrap();
        let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        assert_eq!([number(0), number(8), number(16)], [0, 3, 9]);
    }
}
