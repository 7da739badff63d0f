//! Rate limit of a warning: once in ten seconds, with the number of those that were left out.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PAUSE: Duration = Duration::from_secs(10);

/// One warning that may come with every request.
#[derive(Default)]
pub(super) struct LogPause(Mutex<LastLine>);

#[derive(Default)]
struct LastLine {
    at: Option<Instant>,
    left_out: u64,
}

impl LogPause {
    /// Logs `text`, unless one was logged a short time ago.
    pub(super) fn warn(&self, text: impl FnOnce() -> String) {
        let Some(left_out) = self.turn(Instant::now()) else { return };
        match left_out {
            0 => tracing::warn!("{}", text()),
            _ => tracing::warn!("{} ({left_out} more since the last line)", text()),
        }
    }

    /// May it be logged now? Then, how many were not since the last one.
    fn turn(&self, now: Instant) -> Option<u64> {
        let mut last = self.0.lock();
        if last.at.is_some_and(|at| now.saturating_duration_since(at) < PAUSE) {
            last.left_out += 1;
            return None;
        }
        last.at = Some(now);
        Some(std::mem::take(&mut last.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted() {
        let (pause, begin) = (LogPause::default(), Instant::now());
        let at = |seconds| pause.turn(begin + Duration::from_secs(seconds));
        assert_eq!(
            [at(0), at(1), at(9), at(10), at(19), at(30)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}
