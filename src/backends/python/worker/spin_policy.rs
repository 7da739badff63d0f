//! Spin policy of a server: whether threads may spin, for how long, and which one of its own does.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use troupe_options::Spin;

/// A spin lasts no longer than this, unless the command line says.
pub(super) const MAX_SPIN: Duration = Duration::from_micros(600);
/// How often the machine's runnable threads are counted while threads spin.
const LOAD_INTERVAL: Duration = Duration::from_millis(10);
/// Runnable threads are counted in so many parts: a moving average of small numbers.
const LOAD_PARTS: u64 = 256;

/// Shared by all Python instances of one server.
pub(crate) struct SpinPolicy {
    origin: Instant,
    is_on: bool,
    longest: Duration,
    /// Cores of the machine, if it is looked at how many threads want to run there.
    cores: Option<u64>,
    /// The number of the thread that spins; 0: none does.
    spinner: AtomicU64,
    /// Microseconds since `origin`.
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

impl SpinPolicy {
    /// As `--spin` says; `auto` only where all cores of the machine may be used.
    pub(crate) fn new(spin: Spin) -> Arc<SpinPolicy> {
        let cores = match spin {
            Spin::Auto => std::thread::available_parallelism().ok().map(|it| it.get() as u64),
            Spin::Off | Spin::For(_) => None,
        };
        let longest = match spin {
            Spin::For(time) => time,
            Spin::Auto | Spin::Off => MAX_SPIN,
        };
        Arc::new(SpinPolicy {
            origin: Instant::now(),
            is_on: spin != Spin::Off,
            longest,
            cores,
            spinner: AtomicU64::new(0),
            next_load: AtomicU64::new(0),
            load: AtomicU64::new(0),
        })
    }

    /// May a thread begin to spin?
    pub(crate) fn may_spin(&self, now: Instant) -> bool {
        self.is_on && !self.is_crowded(self.micros(now))
    }

    /// A spin lasts no longer.
    pub(super) fn longest(&self) -> Duration {
        self.longest
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

    /// Do far more threads want to run than there are cores?
    fn is_crowded(&self, at: u64) -> bool {
        let Some(cores) = self.cores else { return false };
        let next = self.next_load.load(Relaxed);
        let later = at + LOAD_INTERVAL.as_micros() as u64;
        if next <= at && self.next_load.compare_exchange(next, later, Relaxed, Relaxed).is_ok() {
            let Some(runnable) = runnable_threads() else { return false };
            let load = self.load.load(Relaxed);
            self.load.store((load * 7 + runnable * LOAD_PARTS) / 8, Relaxed);
        }
        // Who spins for each other is counted as well: as many as there are cores are none too many.
        2 * cores * LOAD_PARTS + LOAD_PARTS / 2 < self.load.load(Relaxed)
    }
}

/// Threads of the whole machine that run or wait for a core.
fn runnable_threads() -> Option<u64> {
    parse_runnable(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn parse_runnable(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(cores: Option<u64>) -> SpinPolicy {
        let policy = SpinPolicy::new(Spin::For(MAX_SPIN));
        SpinPolicy { cores, ..Arc::into_inner(policy).unwrap() }
    }

    #[test]
    fn nobody_spins_if_the_command_line_says_so() {
        let now = Instant::now();
        assert!(!SpinPolicy::new(Spin::Off).may_spin(now));
        let time = Duration::from_micros(5);
        let fixed = SpinPolicy::new(Spin::For(time));
        assert!(fixed.may_spin(now));
        assert_eq!(fixed.longest(), time);
    }

    #[test]
    fn one_thread_spins_and_the_last_one_to_begin_is_it() {
        let policy = policy(None);
        assert!(!policy.is_mine());
        policy.take();
        assert!(policy.is_mine());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!policy.is_mine());
                policy.take();
                assert!(policy.is_mine());
            });
        });
        assert!(!policy.is_mine());
        policy.give_up();
        policy.take();
        policy.give_up();
        assert!(!policy.is_mine());
    }

    #[test]
    fn nobody_spins_while_far_more_threads_want_to_run_than_there_are_cores() {
        let later = Instant::now() + Duration::from_secs(1);
        for (cores, parts, expected) in
            [(2, 5 * LOAD_PARTS, false), (2, 4 * LOAD_PARTS, true), (64, 9000, true)]
        {
            let policy = policy(Some(cores));
            policy.load.store(parts, Relaxed);
            policy.next_load.store(u64::MAX, Relaxed);
            assert_eq!(policy.may_spin(later), expected, "{cores} {parts}");
        }
    }

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!(parse_runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse_runnable("0.20"), None);
        assert!(runnable_threads().is_some_and(|it| 0 < it));
    }
}
