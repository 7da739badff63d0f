//! Adaptive spin: polls briefly for a worker's next frame where it usually comes soon, because to
//! be woken takes longer.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::spin_policy::SpinPolicy;

/// A reply, or the next work after one, that usually takes no longer is worth spinning for.
const MAX_USUAL_REPLY: Duration = Duration::from_micros(200);
const MAX_USUAL_IDLE: Duration = Duration::from_micros(400);
/// What takes longer is as good as never.
const NEVER: Duration = Duration::from_micros(600);
/// A spin lasts no longer than twice what it usually takes and this margin.
const SPIN_MARGIN: Duration = Duration::from_micros(50);
/// If `yield_now` does not return within this, the core is contended: back off.
const CONTENDED_YIELD: Duration = Duration::from_micros(500);
/// How long not to spin after a spin in vain: doubled by each one, up to the longest. A single one
/// among many that were worth it is soon forgotten, as all that comes meanwhile is late.
const MIN_BACKOFF: Duration = Duration::from_micros(250);
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
    /// A spin lasts no longer than this.
    longest: Duration,
    since: Option<Instant>,
    /// Until when to spin for it.
    until: Option<Instant>,
    /// Moving average of how long it took.
    usual: Duration,
    backoff: Duration,
    backs_off_until: Option<Instant>,
}

struct SpinState {
    policy: Arc<SpinPolicy>,
    /// `None` while there is nothing to spin for.
    until: Cell<Option<Instant>>,
    is_contended: Cell<bool>,
    checked: Cell<Option<Instant>>,
    /// Checks in a row after something else has run.
    busy: Cell<u32>,
    begun: Notify,
    is_over: Cell<bool>,
}

thread_local! {
    /// Workers that this thread spins for.
    static SPINS: Cell<usize> = const { Cell::new(0) };
}

impl AdaptiveSpin {
    /// Spins on the runtime of the current thread, as far as the policy allows it.
    pub(crate) fn new(policy: Arc<SpinPolicy>) -> AdaptiveSpin {
        let longest = policy.longest();
        let state = Rc::new(SpinState {
            policy,
            until: Cell::default(),
            is_contended: Cell::default(),
            checked: Cell::default(),
            busy: Cell::default(),
            begun: Notify::new(),
            is_over: Cell::default(),
        });
        actix_rt::spawn(spin_for_frames(state.clone()));
        AdaptiveSpin {
            state,
            frame: ExpectedDelay::new(MAX_USUAL_REPLY, longest),
            work: ExpectedDelay::new(MAX_USUAL_IDLE, longest),
        }
    }

    /// The worker is given work at `now`. Answers how long it may spin itself from now on.
    pub(crate) fn on_dispatch(&mut self, now: Instant) -> Duration {
        self.work.arrived(now, self.state.is_contended.take());
        self.on_request(now);
        let policy = &self.state.policy;
        if policy.may_spin(now) { policy.longest() } else { Duration::ZERO }
    }

    /// The worker was given something that it will answer with a frame.
    pub(crate) fn on_request(&mut self, now: Instant) {
        self.state.set(self.frame.expect(now, self.state.policy.may_spin(now)));
    }

    /// A frame of the worker has come.
    pub(crate) fn on_reply(&mut self, now: Instant) {
        self.state.set(None);
        self.frame.arrived(now, self.state.is_contended.take());
    }

    /// The worker has nothing left to do.
    pub(crate) fn on_idle(&mut self, now: Instant) {
        self.state.set(self.work.expect(now, self.state.policy.may_spin(now)));
    }
}

impl ExpectedDelay {
    fn new(soon: Duration, longest: Duration) -> ExpectedDelay {
        let (since, until, backs_off_until) = (None, None, None);
        let (usual, backoff) = (NEVER, MIN_BACKOFF);
        ExpectedDelay { soon, longest, since, until, usual, backoff, backs_off_until }
    }

    /// Until when to spin for it, if one may and it is worth while.
    fn expect(&mut self, now: Instant, may_spin: bool) -> Option<Instant> {
        self.since = Some(now);
        let is_soon = self.usual < self.soon && self.backs_off_until.is_none_or(|it| it <= now);
        let spin = self.longest.min(2 * self.usual + SPIN_MARGIN);
        self.until = (may_spin && is_soon).then(|| now + spin);
        self.until
    }

    fn arrived(&mut self, now: Instant, was_contended: bool) {
        let Some(since) = self.since.take() else { return };
        let took = now.saturating_duration_since(since).min(NEVER);
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
        let was = self.until.replace(until);
        match (was.is_some(), until.is_some()) {
            (false, true) => {
                SPINS.set(SPINS.get() + 1);
                self.begun.notify_one();
            }
            (true, false) => SPINS.set(SPINS.get() - 1),
            _ => (),
        }
        if until.is_some() {
            self.policy.take();
        }
    }

    /// Yields the core if nothing else runs on this thread, and says whether to spin on.
    fn spins_on(&self) -> bool {
        let Some(until) = self.until.get() else { return false };
        let now = Instant::now();
        if now < until && self.policy.is_mine() {
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
        self.set(None);
        false
    }
}

/// Polls for frames without sleeping while they are expected, as long as the worker is wanted.
async fn spin_for_frames(state: Rc<SpinState>) {
    while !state.is_over.get() {
        while state.spins_on() {
            tokio::task::yield_now().await;
        }
        if SPINS.get() == 0 {
            state.policy.give_up();
        }
        state.begun.notified().await;
    }
}

impl Drop for AdaptiveSpin {
    fn drop(&mut self) {
        self.state.set(None);
        self.state.is_over.set(true);
        self.state.begun.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use troupe_options::Spin;

    use super::*;
    use crate::python::worker::spin_policy::MAX_SPIN;

    /// How long the spin is, after it came so many microseconds late each time.
    fn check(took: &[u64], expected: Option<u64>) {
        let mut now = Instant::now();
        let mut frame = ExpectedDelay::new(MAX_USUAL_REPLY, MAX_SPIN);
        for took in took {
            frame.expect(now, true);
            now += Duration::from_micros(*took);
            frame.arrived(now, false);
        }
        let watched = frame.expect(now, true).map(|it| (it - now).as_micros() as u64);
        assert_eq!(watched.map(|it| it / 10 * 10), expected, "{took:?}");
        assert_eq!(frame.expect(now, false), None, "{took:?}");
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
        check(&[often.as_slice(), &[1000], &often[..4]].concat(), None);
        // The back-off is over.
        check(&[often.as_slice(), &[1000], &often[..5]].concat(), Some(220));
        // And longer after the second time, unless many came in time between.
        let twice = |between: usize, after: usize| {
            [often.as_slice(), &[1000], &[50].repeat(between), &[1000], &often[..after]].concat()
        };
        check(&twice(10, 9), None);
        check(&twice(10, 10), Some(190));
        check(&twice(200, 4), None);
        check(&twice(200, 5), Some(220));
    }

    #[actix_rt::test]
    async fn what_was_watched_for_and_came_is_over() {
        let policy = SpinPolicy::new(Spin::For(MAX_SPIN));
        let mut spin = AdaptiveSpin::new(policy.clone());
        spin.frame.usual = Duration::ZERO;
        let now = Instant::now();
        assert_eq!(spin.on_dispatch(now), MAX_SPIN);
        assert!(spin.state.until.get().is_some() && policy.is_mine());
        spin.on_reply(now);
        assert_eq!(spin.state.until.get(), None);
        let state = spin.state.clone();
        drop(spin);
        assert!(!state.spins_on() && state.is_over.get() && SPINS.get() == 0);
    }

    #[actix_rt::test]
    async fn neither_the_server_nor_the_worker_spins_where_none_may() {
        let mut spin = AdaptiveSpin::new(SpinPolicy::new(Spin::Off));
        (spin.frame.usual, spin.work.usual) = (Duration::ZERO, Duration::ZERO);
        let now = Instant::now();
        assert_eq!(spin.on_dispatch(now), Duration::ZERO);
        assert_eq!(spin.state.until.get(), None);
        spin.on_reply(now);
        spin.on_idle(now);
        assert_eq!(spin.state.until.get(), None);
    }
}
