//! The wall clock at any `Instant`: it is read once, for reading it costs as much as a message
//! between threads.

use std::{
    sync::LazyLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The process's reference point on both clocks.
static BEGIN: LazyLock<(Instant, Duration)> = LazyLock::new(|| {
    (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
});

/// Milliseconds from the Unix epoch to `moment`.
pub(super) fn unix_milliseconds(moment: Instant) -> u64 {
    (BEGIN.1 + since_begin(moment)).as_millis() as u64
}

/// The time from the process's reference point to `moment`; zero for earlier moments.
pub(super) fn since_begin(moment: Instant) -> Duration {
    moment.saturating_duration_since(BEGIN.0)
}
