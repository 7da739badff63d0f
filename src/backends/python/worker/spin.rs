//! Adaptive spin: polls briefly for a worker's next frame where it usually comes soon, because to
//! be woken takes longer.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// A reply, or the next work after one, that usually takes no longer is worth spinning for.
const MAX_USUAL_REPLY: Duration = Duration::from_micros(200);
const MAX_USUAL_IDLE: Duration = Duration::from_micros(400);
/// A spin lasts no longer than this, and than twice what it usually takes and this margin.
const MAX_SPIN: Duration = Duration::from_micros(600);
const SPIN_MARGIN: Duration = Duration::from_micros(50);
/// If `yield_now` does not return within this, the core is contended: back off.
const CONTENDED_YIELD: Duration = Duration::from_micros(500);
/// How long not to spin after a spin in vain: doubled by each one, up to the longest.
const MIN_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// If the last check was longer ago, another task has run on this thread, and what it led to is
/// next.
const BUSY_GAP: Duration = Duration::from_micros(4);
/// So many checks in a row do not yield the core because of that.
const MAX_BUSY_CHECKS: u32 = 3;

/// Learns how soon a worker's replies come, and its next work once it is idle, and spins for what
/// usually comes soon.
pub(crate) struct AdaptiveSpin {
    state: Rc<SpinState>,
    frame: ExpectedDelay,
    work: ExpectedDelay,
}

/// A delay: something that comes a while after something else.
struct ExpectedDelay {
    /// Sooner than this is soon.
    soon: Duration,
    since: Option<Instant>,
    /// Until when to spin for it.
    until: Option<Instant>,
    /// Moving average of how long it took.
    usual: Duration,
    backoff: Duration,
    backs_off_until: Option<Instant>,
}

#[derive(Default)]
struct SpinState {
    /// `None` while there is nothing to spin for.
    until: Cell<Option<Instant>>,
    is_contended: Cell<bool>,
    checked: Cell<Option<Instant>>,
    /// Checks in a row after something else has run.
    busy: Cell<u32>,
    begun: Notify,
    is_over: Cell<bool>,
}

impl AdaptiveSpin {
    /// Spins on the runtime of the current thread.
    pub(crate) fn new() -> AdaptiveSpin {
        let state = Rc::new(SpinState::default());
        // On a single core a spin would keep the worker from running.
        if std::thread::available_parallelism().is_ok_and(|it| 1 < it.get()) {
            actix_rt::spawn(spin_for_frames(state.clone()));
        }
        AdaptiveSpin {
            state,
            frame: ExpectedDelay::new(MAX_USUAL_REPLY),
            work: ExpectedDelay::new(MAX_USUAL_IDLE),
        }
    }

    /// The worker was given work at `now`.
    pub(crate) fn on_dispatch(&mut self, now: Instant) {
        self.work.arrived(now, self.state.is_contended.take());
        self.on_request(now);
    }

    /// The worker was given something that it will answer with a frame.
    pub(crate) fn on_request(&mut self, now: Instant) {
        self.state.set(self.frame.expect(now));
    }

    /// A frame of the worker has come.
    pub(crate) fn on_reply(&mut self, now: Instant) {
        self.state.set(None);
        self.frame.arrived(now, self.state.is_contended.take());
    }

    /// The worker has nothing left to do.
    pub(crate) fn on_idle(&mut self, now: Instant) {
        self.state.set(self.work.expect(now));
    }
}

impl ExpectedDelay {
    fn new(soon: Duration) -> ExpectedDelay {
        let (usual, backoff) = (MAX_SPIN, MIN_BACKOFF);
        ExpectedDelay { soon, since: None, until: None, usual, backoff, backs_off_until: None }
    }

    /// Until when to spin for it, if that is worth while.
    fn expect(&mut self, now: Instant) -> Option<Instant> {
        self.since = Some(now);
        let is_worth_it = self.usual < self.soon && self.backs_off_until.is_none_or(|it| it <= now);
        self.until = is_worth_it.then(|| now + MAX_SPIN.min(2 * self.usual + SPIN_MARGIN));
        self.until
    }

    fn arrived(&mut self, now: Instant, was_contended: bool) {
        let Some(since) = self.since.take() else { return };
        let took = now.saturating_duration_since(since).min(MAX_SPIN);
        self.usual = (self.usual * 7 + took) / 8;
        match self.until.take() {
            Some(until) if until < now || was_contended => {
                self.backs_off_until = Some(now + self.backoff);
                self.backoff = MAX_BACKOFF.min(2 * self.backoff);
            }
            Some(_) => self.backoff = MIN_BACKOFF.max(self.backoff - self.backoff / 64),
            None => (),
        }
    }
}

impl SpinState {
    /// Spins until then.
    fn set(&self, until: Option<Instant>) {
        if self.until.replace(until).is_none() && until.is_some() {
            self.begun.notify_one();
        }
    }

    /// Yields the core if nothing else runs on this thread, and says whether to spin on.
    fn spins_on(&self) -> bool {
        let Some(until) = self.until.get() else { return false };
        let now = Instant::now();
        if now < until {
            let is_busy = self.checked.get().is_some_and(|it| BUSY_GAP < now - it);
            let busy = if is_busy { self.busy.get() + 1 } else { 0 };
            if 0 < busy && busy <= MAX_BUSY_CHECKS {
                self.busy.set(busy);
                self.checked.set(Some(now));
                return true;
            }
            std::thread::yield_now();
            let after = Instant::now();
            self.busy.set(0);
            self.checked.set(Some(after));
            if after - now < CONTENDED_YIELD {
                return true;
            }
            self.is_contended.set(true);
        }
        self.until.set(None);
        false
    }
}

/// Polls for frames without sleeping while they are expected, as long as the worker is wanted.
async fn spin_for_frames(state: Rc<SpinState>) {
    while !state.is_over.get() {
        while state.spins_on() {
            tokio::task::yield_now().await;
        }
        state.begun.notified().await;
    }
}

impl Drop for AdaptiveSpin {
    fn drop(&mut self) {
        self.state.until.set(None);
        self.state.is_over.set(true);
        self.state.begun.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long the spin is, after it came so many microseconds late each time.
    fn check(took: &[u64], expected: Option<u64>) {
        let mut now = Instant::now();
        let mut frame = ExpectedDelay::new(MAX_USUAL_REPLY);
        for took in took {
            frame.expect(now);
            now += Duration::from_micros(*took);
            frame.arrived(now, false);
        }
        let watched = frame.expect(now).map(|it| (it - now).as_micros() as u64);
        assert_eq!(watched.map(|it| it / 10 * 10), expected, "{took:?}");
    }

    #[test]
    fn only_what_comes_soon_is_watched_for() {
        check(&[], None);
        check(&[50; 3], None);
        check(&[50; 40], Some(150));
        check(&[120; 40], Some(290));
        check(&[1000; 40], None);
    }

    #[test]
    fn what_was_watched_for_in_vain_is_not_for_a_while() {
        let often = [50; 40];
        check(&[often.as_slice(), &[1000]].concat(), None);
        // The back-off is over.
        check(&[often.as_slice(), &[1000], &often, &[10_000], &often].concat(), Some(150));
        // And longer after the second time, unless many came in time between.
        let twice = [often.as_slice(), &[1000, 10_000], &often[..10], &[1000]].concat();
        check(&[twice.as_slice(), &[10_000], &often].concat(), None);
        check(&[twice.as_slice(), &[20_000], &often].concat(), Some(150));
    }

    #[actix_rt::test]
    async fn what_was_watched_for_and_came_is_over() {
        let mut spin = AdaptiveSpin::new();
        let now = Instant::now();
        spin.frame.usual = Duration::ZERO;
        spin.on_dispatch(now);
        assert!(spin.state.until.get().is_some());
        spin.on_reply(now);
        assert_eq!(spin.state.until.get(), None);
        let state = spin.state.clone();
        drop(spin);
        assert!(!state.spins_on() && state.is_over.get());
    }
}
