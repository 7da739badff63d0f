//! What larger executions cost: how much longer many rows take than few, per model.

use std::collections::BTreeMap;

use super::counts::Batches;

/// Fewer executions of a size say nothing about it.
const MIN_EXECUTIONS: u64 = 3;
/// Many rows that take this share of what they would take one by one are hardly worth joining.
const UNSHARED_SHARE: f64 = 0.8;
/// Many rows that seem to take less than this share of what few take were measured while something
/// else kept the machine busy.
const MIN_BELIEVED_RATIO: f64 = 0.9;

/// Executions of two sizes of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BatchCost {
    few: u64,
    many: u64,
    /// How many times as long the larger ones took.
    pub(super) ratio: f64,
}

impl BatchCost {
    /// Of the smallest and the largest size there is enough of; they must differ by a factor of two.
    pub(super) fn of(batches: &BTreeMap<u64, Batches>) -> Option<BatchCost> {
        let mut told = batches.iter().filter(|it| 0 < *it.0 && MIN_EXECUTIONS <= it.1.count);
        let each = |it: &Batches| it.ns as f64 / it.count as f64;
        let (few, small) = told.next()?;
        let (many, large) = told.next_back().filter(|it| 2 * few <= *it.0)?;
        Some(BatchCost { few: *few, many: *many, ratio: each(large) / each(small).max(1.0) })
    }

    /// Is it no more than noise?
    pub(super) fn is_noise(&self) -> bool {
        self.ratio < MIN_BELIEVED_RATIO
    }

    /// Is it quicker to execute rows together?
    pub(super) fn pays(&self) -> bool {
        self.ratio < UNSHARED_SHARE * self.many as f64 / self.few as f64
    }

    /// `8 rows took 7.9 times as long as one`.
    pub(super) fn text(&self) -> String {
        let few = match self.few {
            1 => "one".to_owned(),
            few => few.to_string(),
        };
        match (self.is_noise(), self.ratio) {
            (false, ratio) if ratio < 1.05 => format!("{} rows took as long as {few}", self.many),
            (_, ratio) => format!("{} rows took {ratio:.1} times as long as {few}", self.many),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_take_as_long_together_as_one_by_one_are_not_worth_joining() {
        let cost = |sizes: &[(u64, u64, u64)]| {
            let one = |it: &(u64, u64, u64)| (it.0, Batches { count: it.1, ns: it.1 * it.2 });
            BatchCost::of(&sizes.iter().map(one).collect())
        };
        for (sizes, expected) in [
            (
                &[(1, 10, 1_000), (8, 10, 7_900)][..],
                Some((false, "8 rows took 7.9 times as long as one")),
            ),
            (
                &[(1, 10, 1_000), (8, 10, 1_300)],
                Some((true, "8 rows took 1.3 times as long as one")),
            ),
            (
                &[(2, 10, 1_000), (4, 10, 1_900)],
                Some((false, "4 rows took 1.9 times as long as 2")),
            ),
            (&[(1, 10, 1_000), (8, 10, 960)], Some((true, "8 rows took as long as one"))),
            // Too few of a size, or no other size.
            (&[(1, 10, 1_000), (8, 1, 1_300)], None),
            (&[(2, 10, 1_000), (3, 10, 1_300)], None),
            (&[(1, 10, 1_000)], None),
            (&[], None),
        ] {
            let found = cost(sizes);
            assert_eq!(
                found.map(|it| (it.pays(), it.text())),
                expected.map(|it| (it.0, it.1.to_owned()))
            );
        }
    }
}
