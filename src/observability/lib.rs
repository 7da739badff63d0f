//! What leaves the server about it: log lines and traces.

pub mod log;
pub mod telemetry;
