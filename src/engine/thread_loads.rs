//! The loads of the engine threads: how busy each is, and what it was given since.

use std::{
    fs,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// How long a look at what threads do holds; also the least time over which it says something.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// An engine thread as the kernel knows it; set by itself.
pub(crate) type ThreadId = OnceLock<i32>;

/// What is known of all threads, to choose those that have the least to do.
pub(crate) struct ThreadLoads {
    threads: Vec<ThreadLoad>,
    looked: Instant,
}

#[derive(Clone, Copy, Default)]
struct ThreadLoad {
    /// CPU time until the last look.
    cpu: Duration,
    /// How busy it was between the last two looks, in tenths of a core.
    tenths: usize,
    /// What it was given since the last look.
    recent: usize,
    /// And ever.
    all: usize,
}

impl ThreadLoads {
    /// Of so many threads that have done nothing.
    pub(crate) fn new(threads: usize, now: Instant) -> ThreadLoads {
        ThreadLoads { threads: vec![ThreadLoad::default(); threads], looked: now }
    }

    /// Is it time to look at the threads again?
    pub(crate) fn is_old(&self, now: Instant) -> bool {
        LOOK_INTERVAL <= now.saturating_duration_since(self.looked)
    }

    /// What CPU time each thread has taken, until now.
    pub(crate) fn look(&mut self, cpu: impl Iterator<Item = Duration>, now: Instant) {
        let elapsed = now.saturating_duration_since(self.looked).as_millis().max(1);
        self.looked = now;
        for (thread, cpu) in self.threads.iter_mut().zip(cpu) {
            let busy = cpu.saturating_sub(thread.cpu).as_millis();
            let tenths = ((busy * 10 + elapsed / 2) / elapsed) as usize;
            *thread = ThreadLoad { cpu, tenths, recent: 0, ..*thread };
        }
    }

    /// So many different threads, or all, are given something: those with the least to do. What
    /// one was given since the last look counts as a tenth of a core each; of equals, the one that
    /// was given the least ever.
    pub(crate) fn choose(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.threads.len()).collect();
        order.sort_by_key(|it| {
            let ThreadLoad { tenths, recent, all, .. } = self.threads[*it];
            (tenths + recent, all)
        });
        order.truncate(count);
        for chosen in &order {
            self.give(*chosen);
        }
        order
    }

    /// One thread is given one more of what each holds so much: the one with the least to do; of
    /// equals, the one that holds the least.
    pub(crate) fn choose_for(&mut self, held: &[usize]) -> usize {
        let load = |it: &usize| {
            let ThreadLoad { tenths, recent, all, .. } = self.threads[*it];
            (tenths + recent, held[*it], all)
        };
        let chosen = (0..held.len().min(self.threads.len())).min_by_key(load).unwrap_or(0);
        self.give(chosen);
        chosen
    }

    /// This thread is given something.
    pub(crate) fn give(&mut self, thread: usize) {
        self.threads[thread].recent += 1;
        self.threads[thread].all += 1;
    }
}

/// The CPU time of a thread of this process; none of one that has not begun, or has ended.
pub(crate) fn cpu_time(thread: &ThreadId) -> Duration {
    let read = |id: &i32| fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok();
    let text = thread.get().and_then(read).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|it| it.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How busy the threads were in each of several seconds, in tenths; between them, `+` chooses
    /// one thread and a digit so many. Expected are those chosen.
    fn check(threads: usize, story: &[&str], expected: &str) {
        let start = Instant::now();
        let mut loads = ThreadLoads::new(threads, start);
        let (mut second, mut cpu) = (0, vec![Duration::ZERO; threads]);
        let mut chosen = String::new();
        for event in story {
            let count = match *event {
                "+" => 1,
                "2" => 2,
                busy => {
                    second += 1;
                    for (cpu, tenths) in cpu.iter_mut().zip(busy.split(' ')) {
                        *cpu += Duration::from_millis(100 * tenths.parse::<u64>().unwrap());
                    }
                    let now = start + Duration::from_secs(second);
                    assert!(loads.is_old(now));
                    loads.look(cpu.iter().copied(), now);
                    continue;
                }
            };
            chosen.extend(loads.choose(count).iter().map(ToString::to_string));
        }
        assert_eq!(chosen, expected, "{story:?}");
    }

    #[test]
    fn idle_threads_are_given_the_same() {
        check(3, &["+", "+", "+", "+"], "0120");
        check(3, &["2", "2"], "0120");
    }

    #[test]
    fn a_busy_thread_is_given_less_until_the_others_have_as_much() {
        check(2, &["3 0", "+", "+", "+", "+", "+"], "11101");
        check(2, &["3 0", "+", "0 5", "+"], "10");
    }

    #[test]
    fn of_threads_that_are_as_busy_the_one_with_less_gets_it() {
        check(2, &["+", "1 1", "+", "1 1", "+", "1 1", "+"], "0101");
    }

    #[test]
    fn a_connection_goes_where_there_is_the_least_to_do_then_where_the_fewest_are() {
        let start = Instant::now();
        let mut loads = ThreadLoads::new(3, start);
        let spread: Vec<usize> = (0..6).map(|_| loads.choose_for(&[0, 0, 0])).collect();
        assert_eq!(spread, [0, 1, 2, 0, 1, 2]);
        let busy = |tenths: [u64; 3]| tenths.map(|it| Duration::from_millis(100 * it)).into_iter();
        loads.look(busy([0, 0, 0]), start + Duration::from_secs(1));
        // Two of the second thread have gone.
        assert_eq!(loads.choose_for(&[2, 0, 2]), 1);
        loads.look(busy([0, 3, 0]), start + Duration::from_secs(2));
        assert_eq!(loads.choose_for(&[2, 0, 3]), 0);
        // A thread that has none yet is no reason to fail.
        assert_eq!(loads.choose_for(&[]), 0);
    }

    #[test]
    fn the_kernel_knows_what_this_thread_took() {
        let thread = ThreadId::from(rustix::thread::gettid().as_raw_nonzero().get());
        let begun = Instant::now();
        while cpu_time(&thread).is_zero() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it took nothing");
        }
        assert!(cpu_time(&ThreadId::new()).is_zero());
    }
}
