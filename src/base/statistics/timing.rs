//! The timing of a request: how long it queued and how long each phase of its execution took.

use std::time::{Duration, Instant};

/// Where the time of a request went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Timing {
    pub queue: Duration,
    pub compute_input: Duration,
    pub compute_infer: Duration,
    pub compute_output: Duration,
}

impl Timing {
    /// Time in an execution.
    pub fn compute(&self) -> Duration {
        self.compute_input + self.compute_infer + self.compute_output
    }
}

impl std::ops::AddAssign for Timing {
    fn add_assign(&mut self, other: Timing) {
        self.queue += other.queue;
        self.compute_input += other.compute_input;
        self.compute_infer += other.compute_infer;
        self.compute_output += other.compute_output;
    }
}

/// The time since `start`, which becomes now: for consecutive intervals without gaps.
pub fn lap_time(start: &mut Instant) -> Duration {
    let now = Instant::now();
    let elapsed = now - *start;
    *start = now;
    elapsed
}
