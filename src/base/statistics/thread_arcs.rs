//! An `Arc` for each thread to the same value: threads that clone and drop theirs do not write the
//! same reference count.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use super::sharded_counters::{MAX_SHARDS, thread};

/// What to take a `ThreadArc` from.
pub struct ThreadArcs<T> {
    value: Arc<T>,
    own: Box<[OnceLock<ThreadArc<T>>]>,
}

/// Keeps the value, as an `Arc` does; counted among those of the thread that it was taken on.
#[expect(clippy::redundant_allocation, reason = "the outer count is the one of a thread")]
pub struct ThreadArc<T>(Arc<Arc<T>>);

impl<T> ThreadArcs<T> {
    /// All to this value.
    pub fn new(value: Arc<T>) -> ThreadArcs<T> {
        ThreadArcs { value, own: (0..MAX_SHARDS).map(|_| OnceLock::new()).collect() }
    }

    /// One of the current thread's.
    #[inline]
    pub fn this_thread(&self) -> ThreadArc<T> {
        match self.own.get(thread()) {
            Some(place) => place.get_or_init(|| self.value.clone().into()).clone(),
            None => self.value.clone().into(),
        }
    }
}

impl<T> From<Arc<T>> for ThreadArc<T> {
    fn from(value: Arc<T>) -> ThreadArc<T> {
        ThreadArc(Arc::new(value))
    }
}

impl<T> Clone for ThreadArc<T> {
    fn clone(&self) -> ThreadArc<T> {
        ThreadArc(self.0.clone())
    }
}

impl<T> Deref for ThreadArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_counts_by_itself_and_the_value_ends_with_the_last() {
        let value = Arc::new(7);
        let arcs = ThreadArcs::new(value.clone());
        let (first, second) = (arcs.this_thread(), arcs.this_thread());
        assert!(Arc::ptr_eq(&first.0, &second.0));
        let other = thread::scope(|scope| scope.spawn(|| arcs.this_thread()).join().unwrap());
        assert!(!Arc::ptr_eq(&first.0, &other.0));
        assert_eq!((*first, *other), (7, 7));
        drop((first, second, arcs));
        assert_eq!(Arc::strong_count(&value), 2);
        drop(other);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
