//! Requests that are not answered, counted by when they last moved.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{ResponseOutcome, Statistics};
use crate::error::Error;

/// Spans of time told apart.
const SLOTS: usize = 8;

/// How many requests are under way, by the span of time in which each of them last moved: came, or
/// gave a response that is not its last.
///
/// Whoever watches divides time into spans, by `turn`. A request costs two additions.
#[derive(Debug, Default)]
pub struct InFlight {
    counts: [AtomicU64; SLOTS],
    current: AtomicUsize,
    /// When each began; `None` if that was before the first turn.
    begins: Mutex<[Option<Instant>; SLOTS]>,
}

/// What is known of the requests under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OldestInFlight {
    /// The oldest of them has not moved since then, or longer.
    pub since: Instant,
    /// How many there are.
    pub count: u64,
}

impl InFlight {
    fn enter(&self) -> usize {
        let span = self.current.load(Relaxed);
        self.counts[span].fetch_add(1, Relaxed);
        span
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|it| it.load(Relaxed)).sum()
    }

    /// Begins another span, and says what is older; `None` if nothing is under way.
    pub fn turn(&self, now: Instant) -> Option<OldestInFlight> {
        let mut begins = self.begins.lock();
        let is_used = |span: &usize| self.counts[*span].load(Relaxed) != 0;
        let used = (0..SLOTS).filter(is_used);
        let since = used.map(|span| *begins[span].get_or_insert(now)).min();
        // Without a free one, what comes is taken for older than it is: the rest is stuck anyway.
        if let Some(free) = (0..SLOTS).find(|it| !is_used(it)) {
            begins[free] = Some(now);
            self.current.store(free, Relaxed);
        }
        since.map(|since| OldestInFlight { since, count: self.count() })
    }
}

/// Counts one request as under way until it is dropped, and its responses.
pub struct RequestGuard {
    stats: Arc<Statistics>,
    span: usize,
    /// Responses so far.
    responses: usize,
    /// When work on the next response began.
    begun: Instant,
}

impl RequestGuard {
    /// For a request that came at `since`.
    pub fn new(stats: Arc<Statistics>, since: Instant) -> RequestGuard {
        let span = stats.in_flight.enter();
        RequestGuard { stats, span, responses: 0, begun: since }
    }

    /// SlotCounters on the request began only then.
    pub fn begun(&mut self, now: Instant) {
        self.begun = now;
    }

    /// Where the request counts.
    pub fn stats(&self) -> &Statistics {
        &self.stats
    }

    /// A response is ready `elapsed` after its request came; `output` is what taking it out of the
    /// model took, the error is what it says instead of tensors.
    pub fn responded(
        &mut self,
        (elapsed, now): (Duration, Instant),
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
            let (fate, output) = match result {
                Ok(output) => (ResponseOutcome::Success, output.min(whole)),
                Err(error) if error.kind().is_abandoned() => {
                    (ResponseOutcome::Cancel, Duration::ZERO)
                }
                Err(_) => (ResponseOutcome::Fail, Duration::ZERO),
            };
            responses.add(self.responses, fate, (whole - output, output));
            self.begun = now;
        }
        self.responses += 1;
    }

    /// There is no further response.
    pub fn ended(&self, now: Instant) {
        if let Some(responses) = &self.stats.extra.responses {
            let whole = now.saturating_duration_since(self.begun);
            responses.add(self.responses, ResponseOutcome::Empty, (whole, Duration::ZERO));
        }
    }

    /// The request has given a response, and goes on.
    pub fn moved(&mut self) {
        let in_flight = &self.stats.in_flight;
        if self.span != in_flight.current.load(Relaxed) {
            let left = std::mem::replace(&mut self.span, in_flight.enter());
            in_flight.counts[left].fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.stats.in_flight.counts[self.span].fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
        second.moved();
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
