//! Keeps a thread awake while a worker's next frame is about to come: to be woken takes longer.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// What comes this soon is worth staying awake for.
const FRAME_SOON: Duration = Duration::from_micros(200);
const WORK_SOON: Duration = Duration::from_micros(400);
/// Nobody stays awake longer than this, and than twice what it usually takes and this much more.
const MOST: Duration = Duration::from_micros(600);
const MORE: Duration = Duration::from_micros(50);
/// Whoever was let by held the processor this long: it is needed elsewhere.
const CROWDED: Duration = Duration::from_micros(500);
/// How long to sleep as others do after a watch in vain: the longer the more of them there were.
const LEAST_REST: Duration = Duration::from_millis(10);
const MOST_REST: Duration = Duration::from_secs(1);
/// If the last look was longer ago, something else has run here, and what it led to is next.
const BUSY: Duration = Duration::from_micros(4);
/// So often in a row nobody is let by because of that.
const MOST_BUSY: u32 = 3;

/// Knows how soon a worker's frames come, and its next work once it has none, and watches for what
/// comes soon.
pub(crate) struct AdaptiveSpin {
    watch: Rc<Watch>,
    frame: Expected,
    work: Expected,
}

/// Something that comes a while after something else.
struct Expected {
    /// Sooner than this is soon.
    soon: Duration,
    since: Option<Instant>,
    /// Until when it is watched for.
    until: Option<Instant>,
    /// Moving average of how long it took.
    usual: Duration,
    rest: Duration,
    rests_until: Option<Instant>,
}

#[derive(Default)]
struct Watch {
    /// `None` while there is nothing to watch for.
    until: Cell<Option<Instant>>,
    is_crowded: Cell<bool>,
    looked: Cell<Option<Instant>>,
    /// Looks in a row after something else has run.
    busy: Cell<u32>,
    begun: Notify,
    is_over: Cell<bool>,
}

impl AdaptiveSpin {
    /// Watches on the runtime of the current thread.
    pub(crate) fn new() -> AdaptiveSpin {
        let watch = Rc::new(Watch::default());
        // On a single core whoever is waited for would be kept from running.
        if std::thread::available_parallelism().is_ok_and(|it| 1 < it.get()) {
            actix_rt::spawn(watch_for_frames(watch.clone()));
        }
        AdaptiveSpin { watch, frame: Expected::new(FRAME_SOON), work: Expected::new(WORK_SOON) }
    }

    /// The worker was given work at `now`.
    pub(crate) fn on_dispatch(&mut self, now: Instant) {
        self.work.came(now, self.watch.is_crowded.take());
        self.on_request(now);
    }

    /// The worker was given something that it will answer with a frame.
    pub(crate) fn on_request(&mut self, now: Instant) {
        self.watch.set(self.frame.expect(now));
    }

    /// A frame of the worker came.
    pub(crate) fn on_reply(&mut self, now: Instant) {
        self.watch.set(None);
        self.frame.came(now, self.watch.is_crowded.take());
    }

    /// The worker has nothing left to do.
    pub(crate) fn on_idle(&mut self, now: Instant) {
        self.watch.set(self.work.expect(now));
    }
}

impl Expected {
    fn new(soon: Duration) -> Expected {
        let (usual, rest) = (MOST, LEAST_REST);
        Expected { soon, since: None, until: None, usual, rest, rests_until: None }
    }

    /// Until when to watch for it, if that is worth while.
    fn expect(&mut self, now: Instant) -> Option<Instant> {
        self.since = Some(now);
        let is_worth_it = self.usual < self.soon && self.rests_until.is_none_or(|it| it <= now);
        self.until = is_worth_it.then(|| now + MOST.min(2 * self.usual + MORE));
        self.until
    }

    fn came(&mut self, now: Instant, was_crowded: bool) {
        let Some(since) = self.since.take() else { return };
        let took = now.saturating_duration_since(since).min(MOST);
        self.usual = (self.usual * 7 + took) / 8;
        match self.until.take() {
            Some(until) if until < now || was_crowded => {
                self.rests_until = Some(now + self.rest);
                self.rest = MOST_REST.min(2 * self.rest);
            }
            Some(_) => self.rest = LEAST_REST.max(self.rest - self.rest / 64),
            None => (),
        }
    }
}

impl Watch {
    /// Watches until then.
    fn set(&self, until: Option<Instant>) {
        if self.until.replace(until).is_none() && until.is_some() {
            self.begun.notify_one();
        }
    }

    /// Lets others run if nothing runs here, and says whether to go on.
    fn goes_on(&self) -> bool {
        let Some(until) = self.until.get() else { return false };
        let now = Instant::now();
        if now < until {
            let is_busy = self.looked.get().is_some_and(|it| BUSY < now - it);
            let busy = if is_busy { self.busy.get() + 1 } else { 0 };
            if 0 < busy && busy <= MOST_BUSY {
                self.busy.set(busy);
                self.looked.set(Some(now));
                return true;
            }
            std::thread::yield_now();
            let after = Instant::now();
            self.busy.set(0);
            self.looked.set(Some(after));
            if after - now < CROWDED {
                return true;
            }
            self.is_crowded.set(true);
        }
        self.until.set(None);
        false
    }
}

/// Looks for frames without sleeping while they are expected, as long as the worker is wanted.
async fn watch_for_frames(watch: Rc<Watch>) {
    while !watch.is_over.get() {
        while watch.goes_on() {
            tokio::task::yield_now().await;
        }
        watch.begun.notified().await;
    }
}

impl Drop for AdaptiveSpin {
    fn drop(&mut self) {
        self.watch.until.set(None);
        self.watch.is_over.set(true);
        self.watch.begun.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long it is watched for, after it came so many microseconds late each time.
    fn check(took: &[u64], expected: Option<u64>) {
        let mut now = Instant::now();
        let mut frame = Expected::new(FRAME_SOON);
        for took in took {
            frame.expect(now);
            now += Duration::from_micros(*took);
            frame.came(now, false);
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
        // The rest is over.
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
        assert!(spin.watch.until.get().is_some());
        spin.on_reply(now);
        assert_eq!(spin.watch.until.get(), None);
        let watch = spin.watch.clone();
        drop(spin);
        assert!(!watch.goes_on() && watch.is_over.get());
    }
}
