//! Counters sharded by thread: adding is a relaxed load and store, without any locked instruction.

#[cfg(test)]
mod interleavings;

use std::{marker::PhantomData, sync::OnceLock};

use super::{
    atomics::{AtomicU64, AtomicUsize, Mutex, Ordering::Relaxed},
    thread_numbers::{ThreadNumbers, add_own},
};

/// Threads that have a shard of their own; further ones share one. Twice the most engine threads that
/// nobody asked for: threads of models and blocking ones have numbers too. A place costs 24 bytes; the
/// counters behind it are there once its thread has counted.
pub(super) const MAX_SHARDS: usize = 64;

/// A row of counters, all 0 at first.
#[derive(Debug)]
pub struct ShardedCounters {
    length: usize,
    own: Box<[OnceLock<Cells>]>,
    shared: OnceLock<Cells>,
}

type Cells = Box<[AtomicU64]>;

/// The shard that the current thread adds to; not `Send`, so that no other thread writes it.
pub struct ThreadShard<'a> {
    cells: &'a [AtomicU64],
    is_own: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl ShardedCounters {
    /// A row of `length` counters.
    pub fn new(length: usize) -> ShardedCounters {
        let own = (0..MAX_SHARDS).map(|_| OnceLock::new()).collect();
        ShardedCounters { length, own, shared: OnceLock::new() }
    }

    /// The shard of the current thread, for several additions at a time.
    #[inline]
    pub fn this_thread(&self) -> ThreadShard<'_> {
        let place = self.own.get(thread());
        let cells = place
            .unwrap_or(&self.shared)
            .get_or_init(|| (0..self.length).map(|_| AtomicU64::new(0)).collect());
        ThreadShard { cells, is_own: place.is_some(), _of_this_thread: PhantomData }
    }

    /// The counters, summed over all shards.
    pub fn totals(&self) -> Vec<u64> {
        let mut totals = vec![0u64; self.length];
        for cells in self.own.iter().chain([&self.shared]).filter_map(OnceLock::get) {
            for (total, cell) in totals.iter_mut().zip(cells) {
                *total = total.wrapping_add(cell.load(Relaxed));
            }
        }
        totals
    }
}

impl ThreadShard<'_> {
    /// Adds to one of the counters.
    #[inline]
    pub fn add(&self, place: usize, more: u64) {
        let cell = &self.cells[place];
        if self.is_own {
            add_own(cell, more);
        } else {
            cell.fetch_add(more, Relaxed);
        }
    }

    /// Subtracts from one of the counters what this or another thread has added.
    #[inline]
    pub fn subtract(&self, place: usize, less: u64) {
        self.add(place, less.wrapping_neg());
    }
}

/// A total of what is added and later subtracted. Shards are read one after the other: that an item
/// left may be seen before that it entered.
pub(super) fn live(total: u64) -> u64 {
    (total as i64).max(0) as u64
}

/// The number of the current thread, unique among living threads and small: numbers are reused.
#[inline]
pub(super) fn thread() -> usize {
    thread_local! {
        static NUMBER: ThreadNumber = ThreadNumber(NUMBERS.take());
    }
    // A thread that is ending has given its number back: it uses the shared shard.
    NUMBER.try_with(|it| it.0).unwrap_or(usize::MAX)
}

/// A thread's number, given back when the thread ends.
struct ThreadNumber(usize);

/// Of the process and not of a server: threads are the process's, and a number says nothing about
/// what is counted.
static NUMBERS: ThreadNumbers =
    ThreadNumbers { next: AtomicUsize::new(0), free: Mutex::new(Vec::new()) };

impl Drop for ThreadNumber {
    fn drop(&mut self) {
        NUMBERS.give_back(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn nothing_is_lost_however_many_threads_add() {
        let shards = ShardedCounters::new(2);
        // More at once than have numbers of their own, and more one after the other.
        for _ in 0..3 {
            thread::scope(|scope| {
                for _ in 0..2 * MAX_SHARDS {
                    scope.spawn(|| {
                        for _ in 0..1000 {
                            let mine = shards.this_thread();
                            mine.add(0, 3);
                            mine.subtract(1, 1);
                        }
                    });
                }
            });
        }
        let times = 3 * 2 * MAX_SHARDS as u64 * 1000;
        assert_eq!(shards.totals(), [3 * times, times.wrapping_neg()]);
    }

    #[test]
    fn threads_that_live_have_numbers_of_their_own() {
        let own = thread();
        assert_eq!(thread(), own);
        let other = thread::spawn(|| (thread(), thread())).join().unwrap();
        assert_eq!(other.0, other.1);
        assert_ne!(other.0, own);
    }
}
