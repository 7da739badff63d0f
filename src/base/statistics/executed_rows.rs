//! The rows of an execution: all of them, and those that somebody asked for.

use std::iter::Sum;

/// How many rows an execution had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutedRows {
    /// As the batch histogram counts: null rows of sequences are among them.
    pub all: u32,
    /// Those of requests.
    pub asked: u32,
}

/// All of them are of requests.
impl From<u32> for ExecutedRows {
    fn from(rows: u32) -> ExecutedRows {
        ExecutedRows { all: rows, asked: rows }
    }
}

impl Sum for ExecutedRows {
    fn sum<I: Iterator<Item = ExecutedRows>>(rows: I) -> ExecutedRows {
        rows.fold(ExecutedRows::default(), |sum, it| ExecutedRows {
            all: sum.all + it.all,
            asked: sum.asked + it.asked,
        })
    }
}
