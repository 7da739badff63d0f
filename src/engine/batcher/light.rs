//! Which executions are short enough to run where the batcher is, instead of on a thread of their own.

use std::time::Duration;

use crate::instance::Work;

/// An execution this short costs less than two threads waking each other.
const LIGHT: Duration = Duration::from_micros(30);
/// No execution counts for more: one that was interrupted says little of the next.
const MOST: Duration = Duration::from_micros(120);
/// Bytes of input that light work has at most: with more it may take longer than the last ones did.
const BYTES: usize = 64 << 10;

/// What a model's executions took of late.
#[derive(Debug)]
pub(super) struct Weight {
    /// Moving average.
    average: Duration,
}

impl Weight {
    /// Of a model that has to show that it is light.
    pub(super) fn unknown() -> Weight {
        Weight { average: MOST }
    }

    /// Takes in that executions took so long each.
    pub(super) fn add(&mut self, execution: Duration) {
        self.average = (self.average * 7 + execution.min(MOST)) / 8;
    }

    /// Will this work most likely not keep others waiting?
    pub(super) fn is_light(&self, work: &Work) -> bool {
        self.average < LIGHT && work.bytes() <= BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_light_once_it_was_for_a_while_and_until_it_is_not() {
        let mut weight = Weight::unknown();
        let nothing = Work(Vec::new());
        let light = |weight: &Weight| weight.is_light(&nothing);
        weight.add(Duration::from_micros(5));
        assert!(!light(&weight));
        (0..30).for_each(|_| weight.add(Duration::from_micros(5)));
        assert!(light(&weight));
        // Once may be an accident, and twice is none.
        weight.add(Duration::from_millis(5));
        assert!(light(&weight));
        weight.add(Duration::from_millis(5));
        assert!(!light(&weight));
    }
}
