//! Events of a worker beside its answers, from its start to its end: log lines and metrics.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;
use serde::Deserialize;

use super::{stdio_log::line_budget, worker_metrics::WorkerMetrics};
use crate::python::protocol::kinds;
use troupe_base::{
    log_window::LogWindow,
    metrics::{CopiedBytes, Metrics},
};

/// The level of `Logger.VERBOSE`.
const VERBOSE: i64 = 3;

/// `Logger` cuts its messages long before: longer frames are not read.
const MAX_LOGGED_BYTES: usize = 128 << 10;

/// One worker's.
pub(crate) struct WorkerEvents {
    model: Arc<str>,
    instance: Arc<str>,
    budget: Mutex<LogWindow>,
    held: Mutex<WorkerMetrics>,
    /// Counts what is copied for the worker.
    pub(crate) copied: Arc<CopiedBytes>,
}

#[derive(Deserialize)]
struct LoggedLine {
    level: i64,
    place: String,
    message: String,
}

impl WorkerEvents {
    /// For a new worker of `instance` of `model`.
    pub(crate) fn new(
        model: &Arc<str>,
        instance: &Arc<str>,
        metrics: &Metrics,
        copied: &Arc<CopiedBytes>,
    ) -> WorkerEvents {
        WorkerEvents {
            model: model.clone(),
            instance: instance.clone(),
            budget: Mutex::new(line_budget()),
            held: Mutex::new(WorkerMetrics::new(metrics.clone())),
            copied: copied.clone(),
        }
    }

    /// What it says of metrics; the answer is a frame. An error is the worker's, and its end.
    pub(crate) fn count(&self, body: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.held.lock().handle(body, |bytes| self.copied.to_worker(bytes))
    }

    /// Ends its metrics.
    pub(crate) fn let_go(&self) {
        self.held.lock().let_go();
    }

    /// A line of `pb_utils.Logger`.
    pub(crate) fn log(&self, body: &[u8]) {
        if MAX_LOGGED_BYTES < body.len() {
            return;
        }
        let Ok(LoggedLine { level, place, message }) = serde_json::from_slice(body) else { return };
        // What nobody will see must not use up what others need.
        if level == VERBOSE && !tracing::enabled!(target: "troupe::python", tracing::Level::DEBUG) {
            return;
        }
        let Some(dropped) = self.budget.lock().take(Instant::now()) else { return };
        let WorkerEvents { model, instance, .. } = self;
        if 0 < dropped {
            tracing::warn!(target: "troupe::python", %model, %instance, "{dropped} lines were not logged");
        }
        match level {
            1 => tracing::warn!(target: "troupe::python", %model, %instance, place, "{message}"),
            2 => tracing::error!(target: "troupe::python", %model, %instance, place, "{message}"),
            VERBOSE => {
                tracing::debug!(target: "troupe::python", %model, %instance, place, "{message}")
            }
            _ => tracing::info!(target: "troupe::python", %model, %instance, place, "{message}"),
        }
    }

    /// A frame that nobody waits for any more: the worker is finalizing its model.
    pub(crate) fn log_last(&self, kind: u8, body: &[u8]) {
        match kind {
            kinds::LOG => self.log(body),
            // Nobody can be answered, and nonsense does no harm now.
            kinds::METRICS => drop(self.count(body)),
            _ => (),
        }
    }
}
