//! Log of executions that failed: a line with the model, the instance, the requests and the place
//! in the model's source, limited in number for each model.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

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
    /// Outputs that were found missing.
    missing: Mutex<BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct LogWindow {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl FailureLog {
    /// For `version` of `model`, all its instances.
    pub fn new(model: &Arc<str>, version: i64) -> FailureLog {
        FailureLog {
            model: model.clone(),
            version,
            window: Mutex::default(),
            missing: Mutex::default(),
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
        if self.missing.lock().insert(output.to_owned()) {
            let FailureLog { model, version, .. } = self;
            tracing::warn!(
                %model, version, instance,
                "a response lacks output '{output}', which the config has: clients get 200 without \
                 it, as from Triton. This is said once; troupe_missing_outputs_total counts on"
            );
        }
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
        let left_out = self.window.lock().left_out;
        self.tell_left_out(left_out);
    }
}

impl LogWindow {
    /// May one more line be logged? Says how many were not since the last one.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| WINDOW <= now.saturating_duration_since(since)) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines == MAX_LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
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

/// The text, and behind it the frames, the innermost first.
fn on_one_line(text: &str) -> String {
    let Some((text, frames)) = text.rsplit_once(FRAMES_HEAD) else { return text.to_owned() };
    let frames: Vec<&str> = frames.lines().map(str::trim).take(MAX_FRAMES).collect();
    match frames.is_empty() {
        true => text.to_owned(),
        false => format!("{text}, at {}", frames.join(", called at ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_always_fails_fills_no_log_and_what_is_left_out_is_counted() {
        let mut window = LogWindow::default();
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
