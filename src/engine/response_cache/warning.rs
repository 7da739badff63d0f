//! A warning that may come with every request: logged once in ten seconds.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use troupe_base::log_window::LogWindow;

const PAUSE: Duration = Duration::from_secs(10);

/// One kind of warning.
pub(super) struct Warning(Mutex<LogWindow>);

impl Default for Warning {
    fn default() -> Warning {
        Warning(Mutex::new(LogWindow::new(1, PAUSE)))
    }
}

impl Warning {
    /// Logs `text`, unless one was logged a short time ago.
    pub(super) fn log(&self, text: impl FnOnce() -> String) {
        let Some(left_out) = self.0.lock().take(Instant::now()) else { return };
        match left_out {
            0 => tracing::warn!("{}", text()),
            _ => tracing::warn!("{} ({left_out} more since the last line)", text()),
        }
    }
}
