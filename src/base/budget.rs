//! A byte budget: reservations against a cap, given back when they are dropped. Lock-free.

mod account;
mod charge;
mod server;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

pub use self::{
    account::Account,
    charge::{Charge, Hold, is_worth_counting},
    server::{ByteBudget, Kept, Kind, Reason},
};

/// Bytes that several users share. All of them see one count of what is in use.
#[derive(Debug)]
pub struct Budget {
    cap: usize,
    in_use: AtomicUsize,
}

/// Bytes of a budget that others cannot have until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    budget: Arc<Budget>,
    bytes: usize,
}

/// A reservation that would have exceeded the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// The bytes that were in use then.
    pub in_use: usize,
    /// The bytes there may be in all.
    pub cap: usize,
}

impl Budget {
    /// At most `cap` bytes can be reserved at a time; `usize::MAX`: no limit.
    pub fn new(cap: usize) -> Arc<Budget> {
        Arc::new(Budget { cap, in_use: AtomicUsize::new(0) })
    }

    /// The bytes there may be in all.
    pub fn cap(&self) -> usize {
        self.cap
    }

    /// The bytes reserved now; more than the cap only after `reserve_beyond`.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    /// Takes `bytes` if so many are left; all or nothing.
    pub fn reserve(self: &Arc<Budget>, bytes: usize) -> Result<Reserved, Exceeded> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.cap);
        match self.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, add) {
            Ok(_) => Ok(Reserved { budget: self.clone(), bytes }),
            Err(in_use) => Err(Exceeded { in_use, cap: self.cap }),
        }
    }

    /// Counts `bytes` that exist already, even if that exceeds the cap.
    pub fn reserve_beyond(self: &Arc<Budget>, bytes: usize) -> Reserved {
        self.in_use.fetch_add(bytes, Ordering::AcqRel);
        Reserved { budget: self.clone(), bytes }
    }
}

impl Reserved {
    /// So many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.in_use.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_out_of_reach_until_it_is_dropped() {
        let budget = Budget::new(100);
        let first = budget.reserve(60).unwrap();
        for bytes in [41, 100, usize::MAX] {
            assert_eq!(budget.reserve(bytes).unwrap_err(), Exceeded { in_use: 60, cap: 100 });
        }
        let second = budget.reserve(40).unwrap();
        assert_eq!((first.bytes(), second.bytes(), budget.in_use()), (60, 40, 100));
        drop(first);
        assert_eq!(budget.in_use(), 40);
        drop((budget.reserve(60).unwrap(), second));
        assert_eq!(budget.in_use(), 0);
    }

    #[test]
    fn what_exists_already_counts_beyond_the_cap() {
        let budget = Budget::new(100);
        let beyond = budget.reserve_beyond(150);
        assert_eq!(budget.reserve(0).unwrap_err(), Exceeded { in_use: 150, cap: 100 });
        drop(beyond);
        assert!(budget.reserve(100).is_ok());
    }

    #[test]
    fn threads_never_get_more_than_the_cap_together() {
        let budget = Budget::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let reserved = budget.reserve(1);
                        assert!(budget.in_use() <= 3);
                        drop(reserved);
                    }
                });
            }
        });
        assert_eq!(budget.in_use(), 0);
    }
}
