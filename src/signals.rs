//! SIGTERM and SIGINT, which ask the binary to drain and end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals, from the moment on from which they no longer end the process by themselves.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Must be called on a runtime.
    pub(crate) fn watch() -> Result<Signals, String> {
        let watch = |kind| signal(kind).map_err(|error| format!("cannot watch signals: {error}"));
        Ok(Signals {
            terminate: watch(SignalKind::terminate())?,
            interrupt: watch(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next of either.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }
}
