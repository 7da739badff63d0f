//! A circuit breaker: what has failed is left alone for a while, and then tried by one request at a
//! time until it works again.

use std::{
    mem,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Between two trials of what failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets requests through to something, or does not.
#[derive(Default)]
pub(super) struct Breaker(Mutex<Circuit>);

#[derive(Default)]
enum Circuit {
    /// It works, as far as is known.
    #[default]
    Closed,
    /// It has failed.
    Open { retries_at: Instant, is_tried: bool },
}

/// What may be done now.
pub(super) enum Passage<'a> {
    Free,
    /// By this one only: the others wait for how it ends.
    Trial(Trial<'a>),
    Shut,
}

/// The right to try; another one has it if this is dropped.
pub(super) struct Trial<'a>(&'a Breaker);

impl Breaker {
    pub(super) fn pass(&self, now: Instant) -> Passage<'_> {
        let mut circuit = self.0.lock();
        match &mut *circuit {
            Circuit::Closed => Passage::Free,
            Circuit::Open { retries_at, is_tried } => {
                if *is_tried || now < *retries_at {
                    return Passage::Shut;
                }
                *is_tried = true;
                Passage::Trial(Trial(self))
            }
        }
    }

    /// Has it failed, and not worked since?
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.0.lock(), Circuit::Open { .. })
    }

    /// It failed for one that was let through.
    pub(super) fn failed(&self, now: Instant) {
        let mut circuit = self.0.lock();
        // Of those that were let through together, the first one says when it is tried again.
        if matches!(*circuit, Circuit::Closed) {
            *circuit = Circuit::Open { retries_at: now + PAUSE, is_tried: false };
        }
    }
}

impl Trial<'_> {
    /// It works again.
    pub(super) fn succeeded(self) {
        *self.0.0.lock() = Circuit::Closed;
        mem::forget(self);
    }

    /// It does not.
    pub(super) fn failed(self, now: Instant) {
        *self.0.0.lock() = Circuit::Open { retries_at: now + PAUSE, is_tried: false };
        mem::forget(self);
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if let Circuit::Open { is_tried, .. } = &mut *self.0.0.lock() {
            *is_tried = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens in each half second: `p`: a request passes, if it may; `f`: one that was let through
    /// fails; `t`, `d`, `s`: the trial fails, is given up, or succeeds. Answers one letter for each `p`:
    /// `F`ree, `T`rial or `S`hut.
    fn check(story: &str, expected: &str) {
        let (breaker, begin) = (Breaker::default(), Instant::now());
        let mut trial = None;
        let mut seen = String::new();
        for (index, event) in story.chars().enumerate() {
            let now = begin + PAUSE / 2 * index as u32;
            match event {
                'p' => seen.push(match breaker.pass(now) {
                    Passage::Free => 'F',
                    Passage::Shut => 'S',
                    Passage::Trial(given) => {
                        trial = Some(given);
                        'T'
                    }
                }),
                'f' => breaker.failed(now),
                't' => trial.take().unwrap().failed(now),
                'd' => drop(trial.take().unwrap()),
                's' => trial.take().unwrap().succeeded(),
                _ => (),
            }
        }
        assert_eq!(seen, expected, "{story}");
    }

    #[test]
    fn after_a_failure_one_tries_while_the_others_are_shut_out() {
        check("ppp", "FFF");
        check("pfpppp", "FSTSS");
        check("f.psp", "TF");
        check("f.ppptpp", "TSSST");
        check("f.pppdpp", "TSSTS");
        // Those that fail later than the first one do not put the trial off.
        check("ffpfp", "TS");
        check("f.pfsp", "TF");
    }
}
