//! What leaves the server about itself: log lines and traces.

mod drop_queue;
pub mod log;
pub mod telemetry;
