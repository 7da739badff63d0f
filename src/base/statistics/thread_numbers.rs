//! Numbers of threads, for what each thread counts in cells of its own: unique among living threads and
//! small, since those of threads that have ended are used again.

use super::atomics::{AtomicU64, AtomicUsize, Mutex, Ordering::Relaxed};

/// The numbers, and those of threads that have ended.
pub(super) struct ThreadNumbers {
    pub(super) next: AtomicUsize,
    pub(super) free: Mutex<Vec<usize>>,
}

impl ThreadNumbers {
    /// A number that no living thread has.
    pub(super) fn take(&self) -> usize {
        // Under the lock that it was given back under: all additions of that thread are visible.
        let used = self.free.lock().pop();
        used.unwrap_or_else(|| self.next.fetch_add(1, Relaxed))
    }

    /// Of a thread that ends.
    pub(super) fn give_back(&self, number: usize) {
        self.free.lock().push(number);
    }
}

/// Adds to a cell that only the thread with its number writes: without any locked instruction.
#[inline]
pub(super) fn add_own(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(more), Relaxed);
}
