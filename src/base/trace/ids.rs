//! Random identifiers: unlike each other, not secret.

use std::{
    cell::Cell,
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// 64 random bits.
pub fn random() -> u64 {
    // Seeded by the operating system, once a thread.
    thread_local!(static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish()));
    STATE.with(|state| {
        // SplitMix64: a counter in steps of the golden ratio, well mixed.
        let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(next);
        let mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// A span's identifier: never zero, for zero means that there is none.
pub fn span_id() -> u64 {
    random().max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_alike() {
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| (0..1000).map(|_| span_id()).collect::<Vec<_>>()))
            .collect();
        let all: HashSet<u64> = threads.into_iter().flat_map(|it| it.join().unwrap()).collect();
        assert_eq!(all.len(), 4000);
    }
}
