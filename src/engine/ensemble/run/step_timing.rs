//! How long one request stays at a step, for the step's metrics and for the live picture.

use std::time::{Duration, Instant};

use crate::ensemble::plan::Plan;
use troupe_base::{
    error::Error,
    metrics::StepDurations,
    statistics::{AgeToken, Timing},
};

/// A request has its turn at a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepTurn {
    /// Which step.
    pub(crate) step: usize,
    /// Its inputs were there.
    pub(crate) ready: Instant,
    /// It has its turn.
    pub(crate) now: Instant,
    /// For room in the step's window.
    pub(crate) waited: Duration,
    /// It takes room in that window while it is in flight.
    pub(crate) has_window: bool,
}

/// One request at a step's model.
pub(crate) struct StepTiming {
    pub(crate) turn: StepTurn,
    is_measured: bool,
    /// Where it is counted while it is in flight.
    token: Option<AgeToken>,
}

impl StepTiming {
    /// Warm-ups are not measured.
    pub(crate) fn new(turn: StepTurn, is_measured: bool) -> StepTiming {
        StepTiming { turn, is_measured, token: None }
    }

    /// The model is asked.
    pub(crate) fn begin(&mut self, plan: &Plan, now: Instant) {
        if self.is_measured {
            self.token = plan.steps[self.turn.step].metrics.started(now);
            plan.live.steps[self.turn.step].request_started();
        }
    }

    /// The model has answered; `timing` is that of a good answer. Says how long the step was busy,
    /// waiting for its model or in it, if anybody looks.
    pub(crate) fn end(&self, plan: &Plan, timing: Option<&Timing>, now: Instant) -> Duration {
        let metrics = &plan.steps[self.turn.step].metrics;
        let Some(timing) = timing else {
            metrics.failed(self.token);
            return Duration::ZERO;
        };
        if self.token.is_none() {
            return Duration::ZERO;
        }
        let whole = now.saturating_duration_since(self.turn.ready);
        let spent = StepDurations::of(whole, self.turn.waited + timing.queue, timing.compute());
        metrics.finished(self.token, &spent);
        spent.queue + spent.compute
    }

    /// The same for the live picture, which also shows how requests failed.
    pub(crate) fn show(&self, plan: &Plan, error: Option<&Error>, now: Instant) {
        if self.is_measured {
            let elapsed = now.saturating_duration_since(self.turn.ready);
            plan.live.steps[self.turn.step].request_ended(error, elapsed, now);
        }
    }
}
