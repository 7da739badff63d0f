//! Rate limit of log lines: so many in a window of time, and how many were left out.

use std::time::{Duration, Instant};

/// What may be logged of one kind.
#[derive(Debug)]
pub struct LogWindow {
    max_lines: u32,
    window: Duration,
    /// When the current window began.
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogWindow {
    /// So many lines in each `window`, which begins with its first line.
    pub fn new(max_lines: u32, window: Duration) -> LogWindow {
        LogWindow { max_lines, window, since: None, lines: 0, left_out: 0 }
    }

    /// May one more line be logged? Says how many were not since the last one.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| self.window <= now.saturating_duration_since(since)) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines == self.max_lines {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// How many were not logged since the last one that was.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted() {
        let (mut window, begin) = (LogWindow::new(1, Duration::from_secs(10)), Instant::now());
        let mut at = |seconds| window.take(begin + Duration::from_secs(seconds));
        assert_eq!(
            [at(0), at(1), at(9), at(10), at(19), at(30)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}
