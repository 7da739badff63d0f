//! Hands on what iterations end with in the order of the decoupled responses they began with.

use std::collections::VecDeque;

use troupe_base::error::Result;

/// Iterations that have begun, the first one first.
///
/// Invariant: only at the end stands the last iteration, or a failure; nothing begins behind it.
pub(super) struct IterationOrder<T> {
    begun: VecDeque<OrderedIteration<T>>,
    /// The number of the first of them.
    first: u64,
    is_closed: bool,
}

struct OrderedIteration<T> {
    /// How it ended, if it has.
    outcome: Option<Result<T>>,
    is_last: bool,
}

impl<T> Default for IterationOrder<T> {
    fn default() -> IterationOrder<T> {
        IterationOrder { begun: VecDeque::new(), first: 0, is_closed: false }
    }
}

impl<T> IterationOrder<T> {
    /// Takes the next number; `None` where nothing more is wanted.
    pub(super) fn begin(&mut self, is_last: bool) -> Option<u64> {
        if self.is_closed {
            return None;
        }
        self.is_closed = is_last;
        self.begun.push_back(OrderedIteration { outcome: None, is_last });
        Some(self.first + self.begun.len() as u64 - 1)
    }

    /// An iteration has ended. When it failed, those behind it are not wanted any more.
    pub(super) fn finish(&mut self, number: u64, outcome: Result<T>) {
        let Some(index) = self.index(number) else { return };
        if outcome.is_err() {
            self.begun.truncate(index + 1);
            self.is_closed = true;
        }
        self.begun[index].outcome = Some(outcome);
    }

    /// Takes the first iteration, if it has ended, and says whether it is the last.
    pub(super) fn take_first(&mut self) -> Option<(Result<T>, bool)> {
        let first = self.begun.front_mut()?;
        let outcome = first.outcome.take()?;
        let is_last = first.is_last;
        self.begun.pop_front();
        self.first += 1;
        Some((outcome, is_last))
    }

    /// Forgets all; nothing is wanted any more.
    pub(super) fn close(&mut self) {
        self.first += self.begun.len() as u64;
        self.begun.clear();
        self.is_closed = true;
    }

    /// Has all that has begun been taken?
    pub(super) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Does anybody wait for this iteration?
    pub(super) fn is_wanted(&self, number: u64) -> bool {
        self.index(number).is_some()
    }

    /// Where an iteration stands that has not ended.
    fn index(&self, number: u64) -> Option<usize> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.begun.get(index)?.outcome.is_none().then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::error::Error;

    /// Ends iterations in this order, `-n` failing number n, and lists what comes out each time.
    fn check(begun: u64, ends: &[i64], expected: &str) {
        let mut order = IterationOrder::default();
        for number in 0..begun {
            assert_eq!(order.begin(number + 1 == begun), Some(number));
        }
        let mut seen = Vec::new();
        for end in ends {
            let number = end.unsigned_abs();
            let failed = || Error::invalid(format!("{number} failed"));
            order.finish(number, if *end < 0 { Err(failed()) } else { Ok(number) });
            let mut taken = String::new();
            while let Some((outcome, is_last)) = order.take_first() {
                taken += &outcome.map_or_else(|it| it.to_string(), |it| it.to_string());
                taken += if is_last { "." } else { " " };
            }
            seen.push(taken);
        }
        assert_eq!(seen.join("|"), expected);
        assert!(order.begin(false).is_none());
    }

    #[test]
    fn what_ends_early_waits_for_those_before_it() {
        check(3, &[0, 1, 2], "0 |1 |2.");
        check(3, &[2, 1, 0], "||0 1 2.");
        check(4, &[1, 0, 3, 2], "|0 1 ||2 3.");
    }

    #[test]
    fn a_failure_comes_in_its_turn_and_nothing_behind_it() {
        check(4, &[3, -2, 0, 1], "||0 |1 2 failed ");
        check(4, &[-3, -1, 2, 0], "|||0 1 failed ");
    }

    #[test]
    fn an_end_that_is_told_twice_counts_once() {
        check(3, &[1, 1, 0, 0, 2, 2], "||0 1 ||2.|");
        check(3, &[-1, 1, 0], "||0 1 failed ");
    }

    #[test]
    fn nothing_is_wanted_of_what_was_closed() {
        let mut order = IterationOrder::default();
        let number = order.begin(false).unwrap();
        assert!(order.is_wanted(number) && !order.is_empty());
        order.close();
        assert!(!order.is_wanted(number) && order.is_empty());
        order.finish(number, Ok(()));
        assert!(order.take_first().is_none() && order.begin(true).is_none());
    }
}
