//! SIGTERM and SIGINT, which ask the binary to drain and end.

use std::time::Duration;

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
    /// When the last one came.
    last: Option<Instant>,
}

impl Signals {
    /// Must be called on a runtime.
    pub(crate) fn watch() -> Result<Signals, String> {
        let watch = |kind| signal(kind).map_err(|error| format!("cannot watch signals: {error}"));
        Ok(Signals {
            terminate: watch(SignalKind::terminate())?,
            interrupt: watch(SignalKind::interrupt())?,
            last: None,
        })
    }

    /// Waits for the next of either that is no echo of the one before.
    pub(crate) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => (),
                _ = self.interrupt.recv() => (),
            }
            let before = self.last.replace(Instant::now());
            if before.is_none_or(|it| ECHO < it.elapsed()) {
                return;
            }
        }
    }
}
