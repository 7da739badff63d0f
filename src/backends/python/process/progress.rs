//! Progress of a worker: a shared counter of the groups it has begun, and which of them it is not to
//! begin any more.
#![expect(unsafe_code, reason = "numbers in a mapping that a worker can see")]

use std::{
    fs::File,
    os::fd::OwnedFd,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// The worker maps so many bytes.
const PAGE_BYTES: usize = 4096;

/// Which number of the page says how many groups were begun, from which one on they are taken back,
/// and up to which one. `worker.py` has the same.
const BEGUN: usize = 0;
const TAKEN_FROM: usize = 1;
const TAKEN_TO: usize = 2;
/// Which one says how many microseconds the worker may spin, 0: not at all. `spin.py` has the same.
const SPIN: usize = 3;

/// A page that the worker writes one number to, how many groups it has begun to execute, in the
/// order they came; and we three. Mapped: thousands of instances hold no descriptor for it.
pub(crate) struct Progress(MmapRaw);

impl Progress {
    /// Nothing is begun. The descriptor is the worker's.
    pub(crate) fn new() -> std::io::Result<(Progress, OwnedFd)> {
        let fd = memfd_create("troupe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, PAGE_BYTES as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let file = File::from(fd);
        let map = MmapOptions::new().len(PAGE_BYTES).map_raw(&file)?;
        Ok((Progress(map), file.into()))
    }

    fn number(&self, index: usize) -> &AtomicU64 {
        let page = self.0.as_mut_ptr().cast::<u64>();
        // SAFETY: a page is aligned, and as large as it was made: it is sealed. It is mapped as long
        // as we live, and read and written as atomics only; what a worker writes is any number.
        unsafe { AtomicU64::from_ptr(page.add(index)) }
    }

    /// The worker is not to begin the groups `from..to`, counted from its first one. It answers
    /// those that it had not begun as if they were to be executed anew. Whoever asks what was begun
    /// after this knows what will not be.
    pub(crate) fn take_back(&self, from: u64, to: u64) {
        // No group is in between.
        self.number(TAKEN_FROM).store(u64::MAX, SeqCst);
        self.number(TAKEN_TO).store(to, SeqCst);
        self.number(TAKEN_FROM).store(from, SeqCst);
    }

    /// How long the worker may spin from now on; zero: not at all.
    pub(crate) fn set_spin(&self, longest: Duration) {
        self.number(SPIN).store(longest.as_micros() as u64, Relaxed);
    }

    /// How many groups were begun.
    pub(crate) fn begun(&self) -> u64 {
        self.number(BEGUN).load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_worker_writes_is_read() {
        let (progress, fd) = Progress::new().unwrap();
        assert_eq!(progress.begun(), 0);
        rustix::io::pwrite(&fd, &7_u64.to_ne_bytes(), 0).unwrap();
        assert_eq!(progress.begun(), 7);
        assert!(ftruncate(&fd, 0).is_err());
    }

    #[test]
    fn what_is_taken_back_stands_where_the_worker_reads_it() {
        let (progress, fd) = Progress::new().unwrap();
        progress.take_back(3, 9);
        progress.set_spin(Duration::from_micros(6));
        let mut page = [0; 32];
        rustix::io::pread(&fd, &mut page, 0).unwrap();
        let number = |at: usize| u64::from_ne_bytes(page[at..at + 8].try_into().unwrap());
        assert_eq!([number(0), number(8), number(16), number(24)], [0, 3, 9, 6]);
        progress.set_spin(Duration::ZERO);
        rustix::io::pread(&fd, &mut page, 0).unwrap();
        assert_eq!(page[24..], [0; 8]);
    }
}
