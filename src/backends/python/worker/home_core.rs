//! Home core of a worker: the core it waits on while a thread spins there for its answer, and whether
//! the kernel leaves both there.

use std::time::{Duration, Instant};

/// What a thread that was moved away while it spun counts, beside one that was not.
const MOVE_WEIGHT: u32 = 8;
/// With so many, to share a core is of no use for a while.
const MAX_MOVES: u32 = 4 * MOVE_WEIGHT;
const APART_TIME: Duration = Duration::from_secs(1);

/// Where a worker waits.
#[derive(Default)]
pub(super) struct HomeCore {
    /// Of the thread that spins for its answer.
    core: Option<usize>,
    moves: u32,
    apart_until: Option<Instant>,
}

impl HomeCore {
    /// The worker is given work by a thread that spins on `core` until it answers. Answers where the
    /// worker is to wait afterwards.
    pub(super) fn share(&mut self, now: Instant, core: usize) -> Option<usize> {
        self.core = self.apart_until.is_none_or(|it| it <= now).then_some(core);
        self.core
    }

    /// The worker waits anywhere.
    pub(super) fn part(&mut self) -> Option<usize> {
        self.core = None;
        None
    }

    /// It has answered; `core` says where the thread that spun is now.
    pub(super) fn answered(&mut self, now: Instant, core: impl FnOnce() -> usize) {
        let Some(home) = self.core.take() else { return };
        if home == core() {
            self.moves = self.moves.saturating_sub(1);
            return;
        }
        self.moves += MOVE_WEIGHT;
        // A scheduler that moves one of two threads elsewhere at once makes each of them wake the
        // other: real-time ones do.
        if MAX_MOVES <= self.moves {
            self.moves = 0;
            self.apart_until = Some(now + APART_TIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_shared_unless_the_kernel_keeps_moving_who_shares_it() {
        let (mut home, now) = (HomeCore::default(), Instant::now());
        // One move in nine is none.
        for number in 0..900 {
            assert_eq!(home.share(now, 1), Some(1), "{number}");
            home.answered(now, || if number % 9 == 0 { 0 } else { 1 });
        }
        let moved = |home: &mut HomeCore| {
            let mut times = 0;
            while home.share(now, 1).is_some() {
                home.answered(now, || 0);
                times += 1;
            }
            times
        };
        assert!((1..=4).contains(&moved(&mut home)));
        assert_eq!(home.share(now + APART_TIME / 2, 1), None);
        let later = now + APART_TIME;
        assert_eq!(home.share(later, 1), Some(1));
        assert_eq!(home.part(), None);
        home.answered(later, || panic!("nobody shared a core"));
    }
}
