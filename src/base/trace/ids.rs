//! Random identifiers of traces and spans: distinct, not secret.

/// 64 random bits, from a generator that the operating system seeds once a thread.
pub fn random() -> u64 {
    fastrand::u64(..)
}

/// A span's identifier; never zero, which means that there is none.
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
