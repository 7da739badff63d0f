//! The rule of when a batch is complete: preferred sizes, the delay for more, and which requests join.

use std::time::{Duration, Instant};

use troupe_base::{request::Pending, tensor::Tensor};

/// When a batch of at most `max_rows` runs.
pub(super) struct BatchRule {
    max_rows: u32,
    preferred: Vec<u32>,
    max_delay: Duration,
    /// Which inputs may have other shapes in each request.
    ragged: Vec<bool>,
}

/// What to do with the requests that wait.
pub(super) enum BatchChoice {
    /// Run so many of them, the first ones.
    Take(usize),
    /// Look again then.
    Delay { until: Instant },
    /// None waits.
    Nothing,
}

/// The first requests that can run as one batch.
struct Head {
    /// All that fits, and the rows in it.
    all: usize,
    rows: u32,
    /// Since when the first of them waits: not the next one where priorities order them.
    oldest: Instant,
    /// The longest part whose rows are a preferred size, 0 if there is none.
    preferred: usize,
    /// Something waits that does not fit.
    is_closed: bool,
}

impl BatchRule {
    /// Without preferred sizes the largest batch is the preferred one.
    pub(super) fn new(
        preferred: &[u32],
        max_delay: Duration,
        max_rows: u32,
        ragged: Vec<bool>,
    ) -> BatchRule {
        let preferred = if preferred.is_empty() { vec![max_rows] } else { preferred.to_vec() };
        BatchRule { max_rows, preferred, max_delay, ragged }
    }

    /// May a batch wait for more requests?
    pub(super) fn delays(&self) -> bool {
        !self.max_delay.is_zero()
    }

    /// Which of those that wait, each since then, the next one first, run now.
    pub(super) fn choose<'a>(
        &self,
        waiting: impl Iterator<Item = (&'a Pending, Instant)>,
        now: Instant,
    ) -> BatchChoice {
        let Some(head) = self.head(waiting) else { return BatchChoice::Nothing };
        let due = head.oldest + self.max_delay;
        let is_overdue = self.delays() && due <= now;
        let largest = self.preferred.iter().copied().max().unwrap_or(self.max_rows);
        if head.preferred != 0 && !is_overdue {
            BatchChoice::Take(head.preferred)
        } else if head.is_closed || largest <= head.rows || !self.delays() || is_overdue {
            BatchChoice::Take(head.all)
        } else {
            BatchChoice::Delay { until: due }
        }
    }

    /// `None` if nothing waits.
    fn head<'a>(&self, mut waiting: impl Iterator<Item = (&'a Pending, Instant)>) -> Option<Head> {
        let (first, oldest) = waiting.next()?;
        let mut head = Head { all: 0, rows: 0, oldest, preferred: 0, is_closed: false };
        for (pending, since) in std::iter::once((first, oldest)).chain(waiting) {
            let rows = head.rows.saturating_add(pending.request.rows());
            let fits = head.all == 0 || (rows <= self.max_rows && self.join(first, pending));
            if !fits {
                head.is_closed = true;
                break;
            }
            head.all += 1;
            head.rows = rows;
            head.oldest = head.oldest.min(since);
            if self.preferred.contains(&rows) {
                head.preferred = head.all;
            }
        }
        head.is_closed |= head.rows == self.max_rows;
        Some(head)
    }

    fn join(&self, first: &Pending, other: &Pending) -> bool {
        can_join(first, other, &self.ragged)
    }
}

/// The same inputs are there in both requests, with the same dimensions but for the batch; `ragged`
/// ones need only be there.
pub(super) fn can_join(first: &Pending, other: &Pending, ragged: &[bool]) -> bool {
    let same = |((a, b), ragged): ((&Option<Tensor>, &Option<Tensor>), &bool)| match (a, b) {
        (Some(a), Some(b)) => *ragged || a.shape().iter().skip(1).eq(b.shape().iter().skip(1)),
        (None, None) => true,
        _ => false,
    };
    first.request.inputs.iter().zip(&other.request.inputs).zip(ragged).all(same)
}
