//! SIGTERM, SIGINT and SIGHUP, which ask the binary to drain and end.

use std::{fs, future::pending, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::Instant,
};

/// One request to end may come as several signals: `timeout` sends one to its child and one to the
/// group of both.
const ECHO: Duration = Duration::from_millis(500);

/// The signals, from the moment on from which they no longer end the process by themselves.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal was closed. `None` if that was to be ignored when the process began, as
    /// `nohup` has it.
    hang_up: Option<Signal>,
    /// When the last one came.
    last: Option<Instant>,
}

impl Signals {
    /// Must be called on a runtime.
    pub(crate) fn watch() -> Result<Signals, String> {
        let watch = |kind| signal(kind).map_err(|error| format!("cannot watch signals: {error}"));
        let hang_up = SignalKind::hangup();
        let is_ignored = is_ignored(hang_up);
        Ok(Signals {
            terminate: watch(SignalKind::terminate())?,
            interrupt: watch(SignalKind::interrupt())?,
            hang_up: if is_ignored { None } else { Some(watch(hang_up)?) },
            last: None,
        })
    }

    /// Waits for the next of them that is no echo of the one before.
    pub(crate) async fn next(&mut self) {
        loop {
            let hang_up = async {
                match &mut self.hang_up {
                    Some(signal) => signal.recv().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = self.terminate.recv() => (),
                _ = self.interrupt.recv() => (),
                _ = hang_up => (),
            }
            let before = self.last.replace(Instant::now());
            if before.is_none_or(|it| ECHO < it.elapsed()) {
                return;
            }
            let millis = ECHO.as_millis();
            tracing::info!("a signal within {millis} ms of the last one is taken for the same");
        }
    }
}

/// Whether the process ignores a signal, which it may have inherited.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores(&status, kind.as_raw_value())
}

/// `SigIgn` has a bit for each signal, the lowest for 1.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or_default();
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::ignores;

    #[test]
    fn ignored_signals_are_read_from_the_kernels_mask() {
        for (mask, expected) in
            [("0000000000000000", false), ("0000000000001001", true), ("", false)]
        {
            assert_eq!(ignores(&format!("SigBlk:\t1\nSigIgn:\t{mask}\n"), 1), expected, "{mask}");
        }
        assert!(ignores("SigIgn:\t0000000000001000", 13));
    }
}
