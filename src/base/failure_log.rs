//! Log of executions that failed: a line with the model, the instance, the requests and the place
//! in the model's source, limited in number for each model.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::log_window::LogWindow;

/// What one model may log in each `WINDOW`; further failures are counted.
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);
/// Requests of a failed batch whose ids are told.
const MAX_IDS: usize = 4;
/// Frames of the model's stack that are told, the innermost ones.
const MAX_FRAMES: usize = 12;
/// What stands between a text and its frames in the errors of Python models, as Triton has it.
const FRAMES_HEAD: &str = "\n\nAt:\n";

/// Where failed executions of one version of a model are logged.
#[derive(Debug)]
pub struct FailureLog {
    model: Arc<str>,
    version: i64,
    window: Mutex<LogWindow>,
    /// Outputs of which a warning was logged, each by its kind.
    warned: Mutex<BTreeSet<(OutputFlaw, String)>>,
}

/// What is wrong with an output that clients get all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OutputFlaw {
    Missing,
    UnwrittenState,
    Rows,
    WholeBatch,
}

impl FailureLog {
    /// For `version` of `model`, all its instances.
    pub fn new(model: &Arc<str>, version: i64) -> FailureLog {
        FailureLog {
            model: model.clone(),
            version,
            window: Mutex::new(LogWindow::new(MAX_LINES, WINDOW)),
            warned: Mutex::default(),
        }
    }

    /// Logs that an execution of `instance` failed with `text`, for the requests with these ids;
    /// the id of a request that has none is empty.
    pub fn log<'a>(&self, instance: &str, ids: impl Iterator<Item = &'a str>, text: &str) {
        let Some(left_out) = self.window.lock().take(Instant::now()) else { return };
        self.tell_left_out(left_out);
        let FailureLog { model, version, .. } = self;
        let (requests, ids) = told_ids(ids);
        let text = on_one_line(text);
        tracing::error!(
            %model, version, instance, requests, request_id = ids.as_deref(),
            "execution failed: {text}"
        );
    }

    /// Warns, once for each output, that `instance` has answered without one that was asked for.
    pub fn missing_output(&self, instance: &str, output: &str) {
        if self.is_first(OutputFlaw::Missing, output) {
            let FailureLog { model, version, .. } = self;
            tracing::warn!(
                %model, version, instance,
                "a response lacks output '{output}', which the config has: clients get 200 without \
                 it, as from Triton. This is said once; troupe_missing_outputs_total counts on"
            );
        }
    }

    /// Warns, once for each state of sequences, that `instance` has answered without writing it.
    pub fn unwritten_state(&self, instance: &str, state: &str) {
        if self.is_first(OutputFlaw::UnwrittenState, state) {
            let FailureLog { model, version, .. } = self;
            tracing::warn!(
                %model, version, instance,
                "a response lacks '{state}', which is a state: it stays as it was, and the next \
                 request of the sequence reads that. This is said once"
            );
        }
    }

    /// Warns, once for each output, that `instance` has answered a request of `expected` rows with
    /// `got` of them.
    pub fn unexpected_rows(&self, instance: &str, output: &str, expected: usize, got: usize) {
        if self.is_first(OutputFlaw::Rows, output) {
            let FailureLog { model, version, .. } = self;
            tracing::warn!(
                %model, version, instance,
                "the answer to a request of {expected} rows has {got} rows in output '{output}': \
                 clients get 200 with them, as from Triton, and cannot tell which row is whose. \
                 This is said once; troupe_unexpected_rows_total counts on"
            );
        }
    }

    /// Warns, once for each output, that `instance` has answered each request of a batch of `rows`
    /// with all of these.
    pub fn whole_batch(&self, instance: &str, output: &str, rows: usize) {
        if self.is_first(OutputFlaw::WholeBatch, output) {
            let FailureLog { model, version, .. } = self;
            tracing::warn!(
                %model, version, instance,
                "all requests of a batch of {rows} rows were answered with {rows} rows in output \
                 '{output}': give each request its own rows only, clients get those of others \
                 too. This is said once; troupe_unexpected_rows_total counts on"
            );
        }
    }

    fn is_first(&self, flaw: OutputFlaw, output: &str) -> bool {
        self.warned.lock().insert((flaw, output.to_owned()))
    }

    fn tell_left_out(&self, left_out: u64) {
        let FailureLog { model, version, .. } = self;
        if 0 < left_out {
            tracing::error!(%model, version, "{left_out} more executions failed and were not logged");
        }
    }
}

/// What was left out and not told yet.
impl Drop for FailureLog {
    fn drop(&mut self) {
        let left_out = self.window.lock().left_out();
        self.tell_left_out(left_out);
    }
}

/// How many requests there are, and the first ids.
fn told_ids<'a>(ids: impl Iterator<Item = &'a str>) -> (usize, Option<String>) {
    let (mut requests, mut told) = (0, Vec::new());
    for id in ids {
        requests += 1;
        if !id.is_empty() && told.len() < MAX_IDS {
            told.push(crate::error::StepError::request_id(id));
        }
    }
    (requests, (!told.is_empty()).then(|| told.join(", ")))
}

/// The error of a Python model as one line of a log: its frames follow the text, the innermost
/// first. A model that was called by another one has frames of its own within the text.
pub fn on_one_line(text: &str) -> String {
    let mut parts = text.split(FRAMES_HEAD);
    let text = parts.next().unwrap_or_default().lines().map(str::trim);
    let mut line = text.filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" | ");
    for part in parts {
        let is_frame = |it: &&str| it.starts_with("  ");
        let frames = part.lines().take_while(is_frame).map(str::trim).take(MAX_FRAMES);
        let frames: Vec<&str> = frames.collect();
        if !frames.is_empty() {
            line += &format!(", at {}", frames.join(", called at "));
        }
        let rest = part.lines().skip_while(is_frame).filter(|it| !it.is_empty());
        for rest in rest {
            line += if rest.starts_with(';') { "" } else { "; " };
            line += rest;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_always_fails_fills_no_log_and_what_is_left_out_is_counted() {
        let mut window = LogWindow::new(MAX_LINES, WINDOW);
        let begin = Instant::now();
        for _ in 0..MAX_LINES {
            assert_eq!(window.take(begin), Some(0));
        }
        assert_eq!(window.take(begin + WINDOW / 2), None);
        assert_eq!(window.take(begin + WINDOW / 2), None);
        assert_eq!(window.take(begin + WINDOW), Some(2));
        assert_eq!(window.take(begin + WINDOW), Some(0));
    }

    #[test]
    fn frames_follow_the_text_and_ids_are_told_where_there_are_some() {
        for (text, line) in [
            ("told", "told"),
            ("KeyError: 'x'\n\nAt:\n", "KeyError: 'x'"),
            (
                "KeyError: 'x'\n\nAt:\n  m.py(3): f\n  m.py(9): execute\n",
                "KeyError: 'x', at m.py(3): f, called at m.py(9): execute",
            ),
            (
                "inner\n\nAt:\n  a.py(3): execute\n\n\nAt:\n  b.py(9): execute\n",
                "inner, at a.py(3): execute, at b.py(9): execute",
            ),
            ("no\n\nAt:\n  a.py(3): f\n\nadvice", "no, at a.py(3): f; advice"),
            ("no\n\nAt:\n  a.py(3): f\n;", "no, at a.py(3): f;"),
            ("ValueError: a\n  b\n\nAt:\n  m.py(3): f\n", "ValueError: a | b, at m.py(3): f"),
        ] {
            assert_eq!(on_one_line(text), line);
        }
        for (ids, expected) in [
            (&[][..], (0, None)),
            (&["", ""], (2, None)),
            (&["", "7", "8"], (3, Some("7, 8"))),
            (&["1", "2", "3", "4", "5"], (5, Some("1, 2, 3, 4"))),
        ] {
            let (requests, told) = told_ids(ids.iter().copied());
            assert_eq!((requests, told.as_deref()), expected);
        }
    }
}
