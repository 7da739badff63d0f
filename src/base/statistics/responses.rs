//! What became of each response of decoupled models, by its position among those to its request.

use std::time::Duration;

use parking_lot::Mutex;

/// Positions that are counted: a model may give any number of responses, and the memory is ours.
const MOST: usize = 4096;

/// Counts by position, 0 for the first response.
#[derive(Debug, Default)]
pub struct Responses(Mutex<Vec<ResponseTotal>>);

/// How often and how long in all, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ResponseCount {
    pub count: u64,
    pub ns: u64,
}

/// All responses of one position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the statistics extension")]
pub struct ResponseTotal {
    pub compute_infer: ResponseCount,
    pub compute_output: ResponseCount,
    pub success: ResponseCount,
    pub fail: ResponseCount,
    pub empty_response: ResponseCount,
    pub cancel: ResponseCount,
}

/// What became of a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResponseOutcome {
    /// It was sent.
    Success,
    /// It is an error.
    Fail,
    /// The end came instead.
    Empty,
    /// Nobody waited for it any more.
    Cancel,
}

impl ResponseCount {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.ns += time.as_nanos() as u64;
    }
}

impl Responses {
    /// A response of position `index`; `infer` and `output` are the time it took to make it, and to
    /// take it out of the model.
    pub fn add(&self, index: usize, fate: ResponseOutcome, (infer, output): (Duration, Duration)) {
        if MOST <= index {
            return;
        }
        let mut all = self.0.lock();
        if all.len() <= index {
            all.resize(index + 1, ResponseTotal::default());
        }
        let total = &mut all[index];
        if let ResponseOutcome::Success | ResponseOutcome::Fail = fate {
            total.compute_infer.add(infer);
            total.compute_output.add(output);
        }
        let whole = match fate {
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
        responses.add(1, ResponseOutcome::Fail, (ns(5), ns(1)));
        responses.add(0, ResponseOutcome::Success, (ns(3), ns(2)));
        responses.add(0, ResponseOutcome::Success, (ns(3), ns(2)));
        responses.add(2, ResponseOutcome::Empty, (ns(7), ns(0)));
        responses.add(2, ResponseOutcome::Cancel, (ns(9), ns(0)));
        responses.add(MOST, ResponseOutcome::Success, (ns(1), ns(1)));
        let count = |count, ns| ResponseCount { count, ns };
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
