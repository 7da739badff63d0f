//! Statistics of decoupled models' responses, by the position of each response in its request.

use std::time::Duration;

use parking_lot::Mutex;

use super::totals::DurationTotal;

/// Positions that are counted, which bounds the memory: a model may give any number of responses.
const MAX_POSITIONS: usize = 4096;

/// Counts by position, 0 for the first response.
#[derive(Debug, Default)]
pub struct Responses(Mutex<Vec<ResponseTotal>>);

/// All responses of one position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the statistics extension")]
pub struct ResponseTotal {
    pub compute_infer: DurationTotal,
    pub compute_output: DurationTotal,
    pub success: DurationTotal,
    pub fail: DurationTotal,
    pub empty_response: DurationTotal,
    pub cancel: DurationTotal,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResponseOutcome {
    /// It was sent.
    Success,
    /// It is an error.
    Fail,
    /// The end of the responses came instead.
    Empty,
    /// The request had been cancelled.
    Cancel,
}

impl Responses {
    /// Counts a response at position `index`: `infer` is how long the model took to make it,
    /// `output` how long it took to take it out of the model.
    pub fn add(&self, index: usize, outcome: ResponseOutcome, infer: Duration, output: Duration) {
        if MAX_POSITIONS <= index {
            return;
        }
        let mut all = self.0.lock();
        if all.len() <= index {
            all.resize(index + 1, ResponseTotal::default());
        }
        let total = &mut all[index];
        if let ResponseOutcome::Success | ResponseOutcome::Fail = outcome {
            total.compute_infer.add(infer);
            total.compute_output.add(output);
        }
        let whole = match outcome {
            ResponseOutcome::Success => &mut total.success,
            ResponseOutcome::Fail => &mut total.fail,
            ResponseOutcome::Empty => &mut total.empty_response,
            ResponseOutcome::Cancel => &mut total.cancel,
        };
        whole.add(infer + output);
    }

    /// Totals by position.
    pub fn totals(&self) -> Vec<ResponseTotal> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_position_counts_its_own() {
        let (responses, ns) = (Responses::default(), Duration::from_nanos);
        responses.add(1, ResponseOutcome::Fail, ns(5), ns(1));
        responses.add(0, ResponseOutcome::Success, ns(3), ns(2));
        responses.add(0, ResponseOutcome::Success, ns(3), ns(2));
        responses.add(2, ResponseOutcome::Empty, ns(7), ns(0));
        responses.add(2, ResponseOutcome::Cancel, ns(9), ns(0));
        responses.add(MAX_POSITIONS, ResponseOutcome::Success, ns(1), ns(1));
        let count = |count, ns| DurationTotal { count, ns };
        let none = ResponseTotal::default();
        let first = ResponseTotal {
            compute_infer: count(2, 6),
            compute_output: count(2, 4),
            success: count(2, 10),
            ..none
        };
        let second = ResponseTotal {
            compute_infer: count(1, 5),
            compute_output: count(1, 1),
            fail: count(1, 6),
            ..none
        };
        let third = ResponseTotal { empty_response: count(1, 7), cancel: count(1, 9), ..none };
        assert_eq!(responses.totals(), [first, second, third]);
    }
}
