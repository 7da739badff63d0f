//! Instances that can have many executions in work at once: who gets the next one.

use std::num::NonZeroUsize;

/// Counts what each instance has in work.
pub(super) struct Concurrent {
    in_work: Vec<usize>,
    most: NonZeroUsize,
}

impl Concurrent {
    /// For so many instances, each of which may have `most` executions in work.
    pub(super) fn new(instances: usize, most: NonZeroUsize) -> Concurrent {
        Concurrent { in_work: vec![0; instances], most }
    }

    /// The place of the instance that has the least in work.
    pub(super) fn least(&self, idle: &[usize]) -> Option<usize> {
        (0..idle.len()).min_by_key(|place| self.in_work[idle[*place]])
    }

    /// Counts one more; has the instance now all it may have?
    pub(super) fn begin(&mut self, seat: usize) -> bool {
        self.in_work[seat] += 1;
        self.in_work[seat] == self.most.get()
    }

    /// Counts one less; can the instance only now be given work again?
    pub(super) fn end(&mut self, seat: usize) -> bool {
        let had = self.in_work[seat];
        self.in_work[seat] = had.saturating_sub(1);
        had == self.most.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_to_whoever_has_the_least_and_never_beyond_the_most() {
        let mut concurrent = Concurrent::new(2, NonZeroUsize::new(2).unwrap());
        let mut idle = vec![0, 1];
        let mut given = Vec::new();
        while let Some(place) = concurrent.least(&idle) {
            given.push(idle[place]);
            if concurrent.begin(idle[place]) {
                idle.swap_remove(place);
            }
        }
        assert_eq!(given, [0, 1, 0, 1]);
        assert!(concurrent.end(1), "it was full");
        assert!(!concurrent.end(1), "it had room already");
        assert_eq!(concurrent.least(&[0, 1]), Some(1));
    }
}
