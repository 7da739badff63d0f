//! Spin budget of a server: at most one of its threads spins, while the machine has a core to spare;
//! and whether requests come one after the other.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use troupe_options::Spin;

/// A reply, or the next work after one, that usually takes no longer is worth spinning for.
pub(super) const MAX_USUAL_REPLY: Duration = Duration::from_micros(200);
pub(super) const MAX_USUAL_IDLE: Duration = Duration::from_micros(400);
/// A spin lasts no longer than this.
pub(super) const MAX_SPIN: Duration = Duration::from_micros(600);
/// Once two workers of the server were busy at the same time, requests are taken to come side by
/// side for so long.
const PARALLEL_TIME: Duration = Duration::from_millis(20);
/// How often the machine's runnable threads are counted while threads spin.
const LOAD_INTERVAL: Duration = Duration::from_millis(10);
/// Runnable threads are counted in so many parts: a moving average of small numbers.
const LOAD_PARTS: u64 = 256;

/// What is worth spinning for.
#[derive(Clone, Copy)]
pub(super) struct SpinTimes {
    /// A worker's answer that usually comes within this.
    pub(super) reply: Duration,
    /// Its next work.
    pub(super) idle: Duration,
    /// A spin lasts no longer.
    pub(super) longest: Duration,
}

/// Shared by all Python instances of one server.
pub(crate) struct SpinBudget {
    origin: Instant,
    is_on: bool,
    times: SpinTimes,
    /// Cores of the machine, if the load is looked at.
    cores: Option<u64>,
    /// The number of the thread that spins; 0: none does.
    spinner: AtomicU64,
    /// Workers that have something to execute.
    busy: AtomicUsize,
    /// Microseconds since `origin`.
    parallel_until: AtomicU64,
    next_load: AtomicU64,
    /// Runnable threads of the machine, in parts.
    load: AtomicU64,
}

thread_local! {
    /// The number of this thread.
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Relaxed)
    };
}

impl SpinBudget {
    /// As `--spin` says.
    pub(crate) fn new(spin: Spin) -> Arc<SpinBudget> {
        let has_room = || std::thread::available_parallelism().is_ok_and(|it| 1 < it.get());
        let (is_on, cores) = match spin {
            Spin::Off => (false, None),
            Spin::Auto if !has_room() => (false, None),
            Spin::Auto => (true, online_cores()),
            Spin::For(_) => (true, None),
        };
        let times = match spin {
            Spin::For(time) => SpinTimes { reply: time, idle: time, longest: time },
            _ => SpinTimes { reply: MAX_USUAL_REPLY, idle: MAX_USUAL_IDLE, longest: MAX_SPIN },
        };
        Arc::new(SpinBudget {
            origin: Instant::now(),
            is_on,
            times,
            cores,
            spinner: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            parallel_until: AtomicU64::new(0),
            next_load: AtomicU64::new(0),
            load: AtomicU64::new(0),
        })
    }

    /// May a thread begin to spin?
    pub(crate) fn may_spin(&self, now: Instant) -> bool {
        self.is_on && !self.is_crowded(self.micros(now))
    }

    /// What is worth spinning for.
    pub(super) fn times(&self) -> SpinTimes {
        self.times
    }

    /// Do requests come one after the other?
    pub(crate) fn is_serial(&self, now: Instant) -> bool {
        self.parallel_until.load(Relaxed) <= self.micros(now)
    }

    /// Requests come side by side: who works on them can use a core each.
    pub(crate) fn note_parallel(&self, now: Instant) {
        let until = self.micros(now + PARALLEL_TIME);
        // Written seldom: all threads read it.
        if self.parallel_until.load(Relaxed) + 1000 < until {
            self.parallel_until.store(until, Relaxed);
        }
    }

    /// Workers that have something to execute.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Relaxed)
    }

    /// A worker has something to execute, or nothing any more.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        if is_busy {
            self.busy.fetch_add(1, Relaxed)
        } else {
            self.busy.fetch_sub(1, Relaxed)
        };
    }

    /// The current thread is the one that spins. Whoever did ends when it looks next.
    pub(crate) fn take(&self) {
        let me = THREAD.with(|it| *it);
        if self.spinner.load(Relaxed) != me {
            self.spinner.store(me, Relaxed);
        }
    }

    /// Is the current thread the one that spins?
    pub(crate) fn is_mine(&self) -> bool {
        self.spinner.load(Relaxed) == THREAD.with(|it| *it)
    }

    /// The current thread does not spin any more.
    pub(crate) fn give_up(&self) {
        let me = THREAD.with(|it| *it);
        // Another one may have taken it.
        let _ = self.spinner.compare_exchange(me, 0, Relaxed, Relaxed);
    }

    fn micros(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_micros() as u64
    }

    /// Do more threads want to run than there are cores?
    fn is_crowded(&self, at: u64) -> bool {
        let Some(cores) = self.cores else { return false };
        let next = self.next_load.load(Relaxed);
        let later = at + LOAD_INTERVAL.as_micros() as u64;
        if next <= at && self.next_load.compare_exchange(next, later, Relaxed, Relaxed).is_ok() {
            let Some(runnable) = runnable_threads() else { return false };
            let load = self.load.load(Relaxed);
            self.load.store((load * 7 + runnable * LOAD_PARTS) / 8, Relaxed);
        }
        // Both are rough: half a thread more is none.
        cores * LOAD_PARTS + LOAD_PARTS / 2 < self.load.load(Relaxed)
    }
}

/// Threads of the whole machine that run or wait for a core.
fn runnable_threads() -> Option<u64> {
    parse_runnable(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn parse_runnable(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Cores of the whole machine: what `runnable_threads` is to be compared with.
fn online_cores() -> Option<u64> {
    count_cores(&fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

/// Of a list like `0-3,8`.
fn count_cores(list: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let size = |range: &str| match range.split_once('-') {
        Some((first, last)) => Some((number(last)? + 1).saturating_sub(number(first)?)),
        None => number(range).map(|_| 1),
    };
    list.split(',').map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(cores: Option<u64>) -> SpinBudget {
        let budget = SpinBudget::new(Spin::For(MAX_SPIN));
        SpinBudget { cores, ..Arc::into_inner(budget).unwrap() }
    }

    #[test]
    fn nobody_spins_if_the_command_line_says_so() {
        let now = Instant::now();
        assert!(!SpinBudget::new(Spin::Off).may_spin(now));
        let time = Duration::from_micros(5);
        let fixed = SpinBudget::new(Spin::For(time));
        assert!(fixed.may_spin(now));
        assert_eq!(fixed.times().longest, time);
    }

    #[test]
    fn one_thread_spins_and_the_last_one_to_begin_is_it() {
        let budget = budget(None);
        assert!(!budget.is_mine());
        budget.take();
        assert!(budget.is_mine());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!budget.is_mine());
                budget.take();
                assert!(budget.is_mine());
            });
        });
        assert!(!budget.is_mine());
        budget.give_up();
        budget.take();
        budget.give_up();
        assert!(!budget.is_mine());
    }

    #[test]
    fn requests_that_came_side_by_side_are_taken_to_do_so_for_a_while() {
        let budget = budget(None);
        let now = Instant::now();
        assert!(budget.is_serial(now));
        budget.note_parallel(now);
        assert!(!budget.is_serial(now));
        assert!(!budget.is_serial(now + PARALLEL_TIME / 2));
        assert!(budget.is_serial(now + 2 * PARALLEL_TIME));
    }

    #[test]
    fn nobody_spins_while_more_threads_want_to_run_than_there_are_cores() {
        let later = Instant::now() + Duration::from_secs(1);
        for (cores, parts, expected) in
            [(2, 5 * LOAD_PARTS, false), (2, 2 * LOAD_PARTS, true), (64, 9000, true)]
        {
            let budget = budget(Some(cores));
            budget.load.store(parts, Relaxed);
            budget.next_load.store(u64::MAX, Relaxed);
            assert_eq!(budget.may_spin(later), expected, "{cores} {parts}");
        }
    }

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!(parse_runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse_runnable("0.20"), None);
        for (list, expected) in
            [("0-3,8\n", Some(5)), ("0\n", Some(1)), ("0-63", Some(64)), ("", None), ("a-b", None)]
        {
            assert_eq!(count_cores(list), expected, "{list}");
        }
        assert!(runnable_threads().is_some_and(|it| 0 < it));
        assert!(online_cores().is_some_and(|it| 0 < it));
    }
}
