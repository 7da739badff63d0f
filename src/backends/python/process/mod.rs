//! Processes: interpreters that fork workers, how a worker is started, watched and reaped.

pub(super) mod children;
pub(super) mod environment;
pub(super) mod fork_server;
pub(super) mod launch;
pub(super) mod launch_spec;
pub(super) mod preload;
pub(super) mod progress;
pub(super) mod reaper;
pub(super) mod repository_calls;
pub(super) mod source_snapshot;
pub(super) mod sources;
pub(super) mod start_deadline;
pub(super) mod stdio_log;
pub(super) mod stopped;
pub(super) mod worker_events;
pub(super) mod worker_metrics;
pub(super) mod worker_process;
