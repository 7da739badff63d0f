//! Keeps a thread awake while a worker's next frame is about to come: to be woken takes longer.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// What comes this soon is worth staying awake for.
const SOON: Duration = Duration::from_micros(400);
/// Nobody stays awake longer for it.
const MOST: Duration = Duration::from_micros(600);
/// Whoever was let by held the processor this long: it is needed elsewhere.
const CROWDED: Duration = Duration::from_micros(500);
/// How long to sleep as others do after that.
const REST: Duration = Duration::from_millis(20);

/// Knows how soon a worker's frames come, and its next work once it has none, and watches for what
/// comes soon.
pub(super) struct Awake {
    watch: Rc<Watch>,
    frame: Expected,
    work: Expected,
}

/// Something that comes a while after something else.
struct Expected {
    since: Option<Instant>,
    /// Moving average of how long it took.
    usual: Duration,
}

#[derive(Default)]
struct Watch {
    /// `None` while there is nothing to watch for.
    until: Cell<Option<Instant>>,
    rests_until: Cell<Option<Instant>>,
    begun: Notify,
    is_over: Cell<bool>,
}

impl Awake {
    /// Watches on the runtime of the current thread.
    pub(super) fn new() -> Awake {
        let watch = Rc::new(Watch::default());
        // On a single core whoever is waited for would be kept from running.
        if std::thread::available_parallelism().is_ok_and(|it| 1 < it.get()) {
            actix_rt::spawn(watch_for_frames(watch.clone()));
        }
        Awake { watch, frame: Expected::default(), work: Expected::default() }
    }

    /// The worker was given work at `now`.
    pub(super) fn works(&mut self, now: Instant) {
        self.work.came(now);
        self.asked(now);
    }

    /// The worker was given something that it will answer with a frame.
    pub(super) fn asked(&mut self, now: Instant) {
        self.watch.set(self.frame.expect(now));
    }

    /// A frame of the worker came.
    pub(super) fn heard(&mut self, now: Instant) {
        self.watch.set(None);
        self.frame.came(now);
    }

    /// The worker has nothing left to do.
    pub(super) fn rests(&mut self, now: Instant) {
        self.watch.set(self.work.expect(now));
    }
}

impl Default for Expected {
    fn default() -> Expected {
        Expected { since: None, usual: MOST }
    }
}

impl Expected {
    /// Until when to watch for it, if that is worth while.
    fn expect(&mut self, now: Instant) -> Option<Instant> {
        self.since = Some(now);
        (self.usual < SOON).then(|| now + MOST)
    }

    fn came(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            let took = now.saturating_duration_since(since).min(MOST);
            self.usual = (self.usual * 7 + took) / 8;
        }
    }
}

impl Watch {
    /// Watches until then.
    fn set(&self, until: Option<Instant>) {
        let rests = |until: &Instant| self.rests_until.get().is_some_and(|it| *until < it);
        let until = until.filter(|it| !rests(it));
        if self.until.replace(until).is_none() && until.is_some() {
            self.begun.notify_one();
        }
    }

    /// Lets others run, and says whether to go on.
    fn goes_on(&self) -> bool {
        let Some(until) = self.until.get() else { return false };
        let now = Instant::now();
        if now < until {
            std::thread::yield_now();
            if now.elapsed() < CROWDED {
                return true;
            }
            self.rests_until.set(Some(Instant::now() + REST));
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

impl Drop for Awake {
    fn drop(&mut self) {
        self.watch.until.set(None);
        self.watch.is_over.set(true);
        self.watch.begun.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is watched for, after it came so many microseconds late each time.
    fn check(took: &[u64], expected: bool) {
        let start = Instant::now();
        let mut frame = Expected::default();
        for took in took {
            frame.expect(start);
            frame.came(start + Duration::from_micros(*took));
        }
        assert_eq!(frame.expect(start), expected.then(|| start + MOST), "{took:?}");
    }

    #[test]
    fn only_what_comes_soon_is_watched_for() {
        check(&[], false);
        check(&[50; 3], false);
        check(&[50; 10], true);
        check(&[1000; 10], false);
        check(&[[50; 30].as_slice(), &[50_000]].concat(), true);
        check(&[[50; 30].as_slice(), &[50_000; 8]].concat(), false);
    }

    #[actix_rt::test]
    async fn what_was_watched_for_and_came_is_over() {
        let mut awake = Awake::new();
        let now = Instant::now();
        awake.frame.usual = Duration::ZERO;
        awake.works(now);
        assert!(awake.watch.until.get().is_some());
        awake.heard(now);
        assert_eq!(awake.watch.until.get(), None);
        let watch = awake.watch.clone();
        drop(awake);
        assert!(!watch.goes_on() && watch.is_over.get());
    }
}
