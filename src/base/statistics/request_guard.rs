//! The RAII guard that counts one request in its model's statistics.

use std::time::{Duration, Instant};

use super::{counters::Statistics, responses::ResponseOutcome, thread_arcs::ThreadArc};
use crate::error::Error;

/// Counts one request as in flight until it is dropped, and counts its responses.
pub struct RequestGuard {
    stats: ThreadArc<Statistics>,
    /// The generation it counts in.
    generation: usize,
    /// Responses so far.
    responses: usize,
    /// When work on the next response began.
    begun: Instant,
}

impl RequestGuard {
    /// A guard for a request that arrived at `since`.
    pub fn new(stats: impl Into<ThreadArc<Statistics>>, since: Instant) -> RequestGuard {
        let stats = stats.into();
        let generation = stats.in_flight.enter();
        RequestGuard { stats, generation, responses: 0, begun: since }
    }

    /// Sets the time when work on the request began.
    pub fn begun(&mut self, now: Instant) {
        self.begun = now;
    }

    /// The statistics that the request counts in.
    pub fn stats(&self) -> &Statistics {
        &self.stats
    }

    /// Counts a response that is ready at `now`, `elapsed` after its request arrived. The result is
    /// how long it took to take the response out of the model, or the error that it carries.
    pub fn responded(
        &mut self,
        elapsed: Duration,
        now: Instant,
        result: std::result::Result<Duration, &Error>,
    ) {
        let extra = &self.stats.extra;
        if self.responses == 0
            && let Some(histogram) = &extra.first_response
        {
            histogram.observe(elapsed.as_millis() as u64);
        }
        if let Some(responses) = &extra.responses {
            let whole = now.saturating_duration_since(self.begun);
            let (outcome, output) = match result {
                Ok(output) => (ResponseOutcome::Success, output.min(whole)),
                Err(error) if error.kind().is_abandoned() => {
                    (ResponseOutcome::Cancel, Duration::ZERO)
                }
                Err(_) => (ResponseOutcome::Fail, Duration::ZERO),
            };
            responses.add(self.responses, outcome, whole - output, output);
            self.begun = now;
        }
        self.responses += 1;
    }

    /// Counts the end of the responses.
    pub fn ended(&self, now: Instant) {
        if let Some(responses) = &self.stats.extra.responses {
            let whole = now.saturating_duration_since(self.begun);
            responses.add(self.responses, ResponseOutcome::Empty, whole, Duration::ZERO);
        }
    }

    /// Notes progress: the request has given a response and goes on.
    pub fn progressed(&mut self) {
        self.generation = self.stats.in_flight.renew(self.generation);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.stats.in_flight.leave(self.generation);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::statistics::OldestInFlight;

    #[test]
    fn the_oldest_that_has_not_moved_is_known() {
        let stats = Arc::new(Statistics::default());
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let check = |seconds: u64, expected: Option<(u64, u64)>| {
            let expected =
                expected.map(|(since, count)| OldestInFlight { since: at(since), count });
            assert_eq!(stats.in_flight.turn(at(seconds)), expected, "after {seconds} s");
        };
        check(0, None);
        let first = RequestGuard::new(stats.clone(), begin);
        check(1, Some((0, 1)));
        let mut second = RequestGuard::new(stats.clone(), begin);
        let third = RequestGuard::new(stats.clone(), begin);
        check(2, Some((0, 3)));
        drop(first);
        check(3, Some((1, 2)));
        second.progressed();
        check(4, Some((1, 2)));
        drop(third);
        check(5, Some((3, 1)));
        drop(second);
        check(6, None);
    }

    #[test]
    fn what_is_stuck_stays_old_however_much_time_goes_by() {
        let stats = Arc::new(Statistics::default());
        let begin = Instant::now();
        let mut stuck = Vec::new();
        for second in 0..40 {
            stats.in_flight.turn(begin + Duration::from_secs(second));
            stuck.push(RequestGuard::new(stats.clone(), begin));
        }
        let oldest = stats.in_flight.turn(begin + Duration::from_secs(40));
        assert_eq!(oldest, Some(OldestInFlight { since: begin, count: 40 }));
        drop(stuck);
        assert_eq!(stats.in_flight.turn(begin + Duration::from_secs(41)), None);
    }
}
