//! What is under way, on stderr: a bar that moves on a terminal, lines elsewhere.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

/// Cells of the bar.
const WIDTH: usize = 24;

/// How often it moves.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Where it is shown.
pub(super) struct ProgressBar {
    is_terminal: bool,
}

/// A moment of a level.
pub(super) struct ProgressMoment {
    pub(super) in_flight: usize,
    pub(super) is_warming_up: bool,
    /// Of the whole run.
    pub(super) share: f64,
    /// Requests answered and failed at this level.
    pub(super) so_far: (u64, u64),
}

impl ProgressBar {
    /// On stderr.
    pub(super) fn new() -> ProgressBar {
        ProgressBar { is_terminal: io::stderr().is_terminal() }
    }

    /// Moves the bar.
    pub(super) fn show(&self, moment: &ProgressMoment) {
        if self.is_terminal {
            self.write(&format!("\r\x1b[2K{}", bar(moment)));
        }
    }

    /// A line that stays.
    pub(super) fn line(&self, text: &str) {
        self.clear();
        self.write(&format!("{text}\n"));
    }

    /// Takes the bar away.
    pub(super) fn clear(&self) {
        if self.is_terminal {
            self.write("\r\x1b[2K");
        }
    }

    fn write(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        // Whoever closed it does not want to know.
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }
}

fn bar(moment: &ProgressMoment) -> String {
    let ProgressMoment { in_flight, is_warming_up, share, so_far: (answered, failed) } = moment;
    // Eighths of a cell.
    let filled = (share.clamp(0.0, 1.0) * WIDTH as f64 * 8.0) as usize;
    let mut bar = "█".repeat(filled / 8);
    if !filled.is_multiple_of(8) {
        bar.extend(['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get(filled % 8 - 1));
    }
    let rest = " ".repeat(WIDTH - bar.chars().count());
    let doing = if *is_warming_up { "warming up" } else { "measuring" };
    let failed = if *failed == 0 { String::new() } else { format!(", {failed} failed") };
    format!("▕{bar}{rest}▏ {in_flight} in flight, {doing}: {answered} answered{failed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills() {
        let at = |share, failed| {
            bar(&ProgressMoment { in_flight: 4, is_warming_up: false, share, so_far: (7, failed) })
        };
        assert_eq!(at(0.0, 0), "▕                        ▏ 4 in flight, measuring: 7 answered");
        assert_eq!(
            at(0.51, 2),
            "▕████████████▏           ▏ 4 in flight, measuring: 7 answered, 2 failed"
        );
        assert_eq!(at(1.5, 0), "▕████████████████████████▏ 4 in flight, measuring: 7 answered");
    }
}
