//! Adaptive spin: polls briefly for a worker's next frame where it usually comes soon, because to
//! be woken takes longer; and says on which core the worker is to wait meanwhile.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::thread::sched_getcpu;
use tokio::sync::Notify;

use super::{
    home_core::HomeCore,
    spin_budget::{SpinBudget, SpinTimes},
};

/// A spin lasts no longer than twice what it usually takes and this margin.
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
    home: HomeCore,
    /// The worker has something to execute, as the budget knows.
    is_busy: bool,
}

/// A delay: something that comes a while after something else.
struct ExpectedDelay {
    /// Sooner than this is soon.
    soon: Duration,
    /// Longer than this is as good as never.
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
    budget: Arc<SpinBudget>,
    /// `None` while there is nothing to spin for.
    until: Cell<Option<Instant>>,
    /// The worker needs the core of this thread to get on.
    is_shared: Cell<bool>,
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
    /// Spins on the runtime of the current thread, as far as the budget goes.
    pub(crate) fn new(budget: Arc<SpinBudget>) -> AdaptiveSpin {
        let SpinTimes { reply, idle, longest } = budget.times();
        let state = Rc::new(SpinState {
            budget,
            until: Cell::default(),
            is_shared: Cell::default(),
            is_contended: Cell::default(),
            checked: Cell::default(),
            busy: Cell::default(),
            begun: Notify::new(),
            is_over: Cell::default(),
        });
        actix_rt::spawn(spin_for_frames(state.clone()));
        AdaptiveSpin {
            state,
            frame: ExpectedDelay::new(reply, longest),
            work: ExpectedDelay::new(idle, longest),
            home: HomeCore::default(),
            is_busy: false,
        }
    }

    /// The worker is given work at `now`. Answers the core that it is to wait on from now on: the
    /// current one if this thread spins until the answer is there, and nobody else is at work. Then
    /// neither has to wake another core, which takes longer than to give way to each other.
    pub(crate) fn on_dispatch(&mut self, now: Instant, is_alone: bool) -> Option<usize> {
        let budget = &self.state.budget;
        if !is_alone || usize::from(self.is_busy) < budget.busy() {
            budget.note_parallel(now);
        }
        self.work.arrived(now, self.state.is_contended.take());
        self.on_request(now);
        let is_spun_for = self.state.until.get().is_some() && self.state.budget.is_serial(now);
        let home = match is_spun_for {
            true => self.home.share(now, sched_getcpu()),
            false => self.home.part(),
        };
        self.state.is_shared.set(home.is_some());
        home
    }

    /// The worker was given something that it will answer with a frame.
    pub(crate) fn on_request(&mut self, now: Instant) {
        self.state.set(self.frame.expect(now, self.state.budget.may_spin(now)));
    }

    /// A frame of the worker has come.
    pub(crate) fn on_reply(&mut self, now: Instant) {
        self.state.set(None);
        self.state.is_shared.set(false);
        self.frame.arrived(now, self.state.is_contended.take());
        self.home.answered(now, sched_getcpu);
    }

    /// The worker has nothing left to do.
    pub(crate) fn on_idle(&mut self, now: Instant) {
        self.state.set(self.work.expect(now, self.state.budget.may_spin(now)));
    }

    /// The worker has something to execute and waits for nobody, or not.
    pub(crate) fn set_busy(&mut self, is_busy: bool) {
        if std::mem::replace(&mut self.is_busy, is_busy) != is_busy {
            self.state.budget.set_busy(is_busy);
        }
    }
}

impl ExpectedDelay {
    fn new(soon: Duration, longest: Duration) -> ExpectedDelay {
        let (since, until, backs_off_until) = (None, None, None);
        let (usual, backoff) = (longest, MIN_BACKOFF);
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
        let took = now.saturating_duration_since(since).min(self.longest);
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
            self.budget.take();
        }
    }

    /// Yields the core if nothing else runs on this thread, and says whether to spin on.
    fn spins_on(&self) -> bool {
        let Some(until) = self.until.get() else { return false };
        let now = Instant::now();
        if now < until && self.budget.is_mine() {
            let is_busy = self.checked.get().is_some_and(|it| BUSY_GAP < now - it);
            let busy = if is_busy && !self.is_shared.get() { self.busy.get() + 1 } else { 0 };
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
            state.budget.give_up();
        }
        state.begun.notified().await;
    }
}

impl Drop for AdaptiveSpin {
    fn drop(&mut self) {
        self.set_busy(false);
        self.state.set(None);
        self.state.is_over.set(true);
        self.state.begun.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use troupe_options::Spin;

    use super::*;
    use crate::python::worker::spin_budget::{MAX_SPIN, MAX_USUAL_REPLY};

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
        // The back-off is over.
        check(&[often.as_slice(), &[1000], &often, &[10_000], &often].concat(), Some(150));
        // And longer after the second time, unless many came in time between.
        let twice = [often.as_slice(), &[1000, 10_000], &often[..10], &[1000]].concat();
        check(&[twice.as_slice(), &[10_000], &often].concat(), None);
        check(&[twice.as_slice(), &[20_000], &often].concat(), Some(150));
    }

    fn spin(budget: &Arc<SpinBudget>) -> AdaptiveSpin {
        let mut spin = AdaptiveSpin::new(budget.clone());
        (spin.frame.usual, spin.work.usual) = (Duration::ZERO, Duration::ZERO);
        spin
    }

    #[actix_rt::test]
    async fn what_was_watched_for_and_came_is_over() {
        let budget = SpinBudget::new(Spin::For(MAX_SPIN));
        let mut spin = spin(&budget);
        let now = Instant::now();
        spin.on_dispatch(now, true);
        assert!(spin.state.until.get().is_some() && budget.is_mine());
        spin.on_reply(now);
        assert_eq!(spin.state.until.get(), None);
        let state = spin.state.clone();
        drop(spin);
        assert!(!state.spins_on() && state.is_over.get() && SPINS.get() == 0);
    }

    #[actix_rt::test]
    async fn a_worker_waits_on_the_core_of_the_thread_that_spins_for_it() {
        let budget = SpinBudget::new(Spin::For(MAX_SPIN));
        let (mut first, mut second) = (spin(&budget), spin(&budget));
        let now = Instant::now();
        assert!(first.on_dispatch(now, true).is_some());
        first.set_busy(true);
        assert_eq!(second.on_dispatch(now, true), None, "two workers are busy");
        first.on_reply(now);
        first.set_busy(false);
        assert_eq!(second.on_dispatch(now, true), None, "and were so a moment ago");
    }

    #[actix_rt::test]
    async fn a_worker_waits_anywhere_while_requests_come_side_by_side() {
        let budget = SpinBudget::new(Spin::For(MAX_SPIN));
        let mut spin = spin(&budget);
        let now = Instant::now();
        assert_eq!(spin.on_dispatch(now, false), None);
        assert!(spin.state.until.get().is_some() && budget.is_mine());
    }
}
