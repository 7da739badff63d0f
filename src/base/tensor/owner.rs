//! Owners of shared memory: a segment is used again only for requests of the owner it was used for.
//!
//! The owner of a request is the model that its client addressed; steps of an ensemble inherit it.
//! A call that a model makes (BLS) has an owner of its own, one for each caller and called model.
//! So what a worker has mapped is never filled with what was sent to somebody else.

use std::sync::atomic::{AtomicU32, Ordering};

/// Whose requests a segment carries. The default is nobody in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner(u32);

/// Numbers are unique in the process, also among servers.
static NEXT_NUMBER: AtomicU32 = AtomicU32::new(1);

impl Owner {
    /// An owner that no other is equal to.
    pub fn unique() -> Owner {
        Owner(NEXT_NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    /// As workers know it.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The other way round; `None` for what is no number of an owner.
    pub(super) fn of_number(number: u64) -> Option<Owner> {
        u32::try_from(number).ok().map(Owner)
    }
}

/// The owner of a request, which the first model that is asked sets.
#[derive(Debug, Default)]
pub struct OwnerCell(AtomicU32);

impl OwnerCell {
    /// What was set; nobody in particular before.
    pub fn get(&self) -> Owner {
        Owner(self.0.load(Ordering::Relaxed))
    }

    /// Sets it unless that was done.
    #[inline]
    pub fn set_first(&self, owner: Owner) {
        if self.get() == Owner::default() {
            self.0.store(owner.0, Ordering::Relaxed);
        }
    }
}

impl Clone for OwnerCell {
    fn clone(&self) -> OwnerCell {
        OwnerCell(AtomicU32::new(self.0.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_model_that_is_asked_owns_a_request() {
        let (first, second) = (Owner::unique(), Owner::unique());
        assert_ne!(first, second);
        let cell = OwnerCell::default();
        assert_eq!(cell.get(), Owner::default());
        cell.set_first(first);
        cell.set_first(second);
        assert_eq!((cell.get(), cell.clone().get()), (first, first));
    }
}
