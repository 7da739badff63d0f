//! Timeouts of whole seconds, cheap to begin and to end: a thread looks at all of its own together,
//! once a second. Every request waits for its body, and hardly any of them in vain; a timer of the
//! runtime for each took 2 % of the instructions of a small request.

use std::{
    cell::RefCell,
    task::{Context, Poll, Waker},
    time::Duration,
};

use slab::Slab;
use tokio::time::{MissedTickBehavior, interval};

const TICK: Duration = Duration::from_secs(1);

thread_local! {
    static CLOCK: RefCell<Seconds> = RefCell::default();
}

/// The seconds of one thread, and who waits for one of them.
#[derive(Default)]
struct Seconds {
    /// They pass only while somebody waits.
    seconds: u64,
    is_running: bool,
    waiting: Slab<(u64, Waker)>,
}

/// The seconds that this thread has counted: they pass only while somebody waits.
pub(super) fn seconds() -> u64 {
    CLOCK.with_borrow(|it| it.seconds)
}

/// Somebody who waits, but not for ever.
pub(super) struct CoarseTimeout {
    until: u64,
    key: Option<usize>,
}

impl CoarseTimeout {
    /// For `limit`, and at most two seconds longer.
    pub(super) fn new(limit: Duration) -> CoarseTimeout {
        let limit = limit.as_secs() + u64::from(limit.subsec_nanos() != 0);
        // Of the first second a part is over already.
        CoarseTimeout { until: seconds().saturating_add(limit).saturating_add(1), key: None }
    }

    /// Ready once the time is over; wakes the task then.
    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        CLOCK.with_borrow_mut(|clock| {
            if self.until <= clock.seconds {
                return Poll::Ready(());
            }
            match self.key.and_then(|key| clock.waiting.get_mut(key)) {
                Some((_, waker)) => waker.clone_from(context.waker()),
                None => {
                    let entry = (self.until, context.waker().clone());
                    self.key = Some(clock.waiting.insert(entry));
                    clock.run();
                }
            }
            Poll::Pending
        })
    }
}

impl Drop for CoarseTimeout {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            CLOCK.with_borrow_mut(|clock| clock.waiting.try_remove(key));
        }
    }
}

impl Seconds {
    /// Counts seconds as long as somebody waits.
    fn run(&mut self) {
        if std::mem::replace(&mut self.is_running, true) {
            return;
        }
        let ticking = Ticking;
        actix_rt::spawn(async move {
            let _ticking = ticking;
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick comes at once.
            ticks.tick().await;
            loop {
                ticks.tick().await;
                if !CLOCK.with_borrow_mut(Seconds::tick) {
                    break;
                }
            }
        });
    }

    /// A second is over. Does somebody wait still?
    fn tick(&mut self) -> bool {
        self.seconds += 1;
        for (_, (until, waker)) in &self.waiting {
            if *until <= self.seconds {
                waker.wake_by_ref();
            }
        }
        !self.waiting.is_empty()
    }
}

/// The task that counts a thread's seconds, until it ends or its runtime does.
struct Ticking;

impl Drop for Ticking {
    fn drop(&mut self) {
        // The thread may be at its end.
        let _ = CLOCK.try_with(|clock| clock.borrow_mut().is_running = false);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::{task::LocalSet, time::Instant};

    use super::*;

    async fn waited(limit: Duration) -> Duration {
        let (began, mut waiting) = (Instant::now(), CoarseTimeout::new(limit));
        poll_fn(|context| waiting.poll(context)).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_within_two_seconds_of_its_limit() {
        let test = async {
            for (limit, least) in [(0, 0), (200, 200), (1000, 1000), (4300, 4300)] {
                let taken = waited(Duration::from_millis(limit)).await.as_millis();
                assert!((least..=least + 2000).contains(&taken), "{limit}: {taken}");
            }
            let both = tokio::join!(waited(TICK), waited(3 * TICK));
            assert!(both.0 < both.1, "{both:?}");
        };
        LocalSet::new().run_until(test).await;
    }

    #[test]
    fn seconds_pass_in_the_next_runtime_of_a_thread_too() {
        for _ in 0..2 {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_time().start_paused(true).build().unwrap();
            let test = async {
                let mut left = CoarseTimeout::new(60 * TICK);
                poll_fn(|context| Poll::Ready(left.poll(context).is_pending())).await;
                waited(TICK).await
            };
            let taken = LocalSet::new().block_on(&runtime, test);
            assert!(TICK <= taken && taken <= 3 * TICK, "{taken:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_no_more_leaves_nothing() {
        let test = async {
            let mut waiting = CoarseTimeout::new(TICK);
            let now = poll_fn(|context| Poll::Ready(waiting.poll(context))).await;
            assert!(now.is_pending());
            assert_eq!(CLOCK.with_borrow(|it| it.waiting.len()), 1);
            drop(waiting);
            assert_eq!(CLOCK.with_borrow(|it| it.waiting.len()), 0);
            tokio::time::sleep(2 * TICK).await;
            assert!(!CLOCK.with_borrow(|it| it.is_running));
        };
        LocalSet::new().run_until(test).await;
    }
}
