//! Which waiting requests run together, and when. No clocks, no actors: easy to test.

use std::{collections::VecDeque, time::Duration, time::Instant};

use troupe_base::{config::DynamicBatching, request::Pending, tensor::Tensor};

/// The most requests that may wait for one model.
const MAX_QUEUE: usize = 1 << 17;

/// Decides what runs next.
pub(super) trait Scheduler: Send {
    /// Hands the request back when the queue is full.
    fn push(&mut self, pending: Pending) -> Result<(), Box<Pending>>;
    /// The next execution, or when to ask again.
    fn next(&mut self, now: Instant) -> Next;
    /// Those who wait, oldest first.
    fn queue(&mut self) -> &mut VecDeque<Pending>;
    /// How many requests wait.
    fn len(&self) -> usize;
}

/// What to do now.
pub(super) enum Next {
    /// Run these as one execution.
    Run(Vec<Pending>),
    /// Nothing yet; something is due then.
    WaitUntil(Instant),
    /// Nobody waits.
    Empty,
}

/// First come, first served, each request an execution of its own.
#[derive(Default)]
pub(super) struct Direct {
    queue: VecDeque<Pending>,
}

impl Scheduler for Direct {
    fn push(&mut self, pending: Pending) -> Result<(), Box<Pending>> {
        if MAX_QUEUE <= self.queue.len() {
            return Err(Box::new(pending));
        }
        self.queue.push_back(pending);
        Ok(())
    }

    fn next(&mut self, _: Instant) -> Next {
        self.queue.pop_front().map_or(Next::Empty, |it| Next::Run(vec![it]))
    }

    fn queue(&mut self) -> &mut VecDeque<Pending> {
        &mut self.queue
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

/// Fills batches up to `max_rows`, but keeps nobody waiting longer than the configured delay.
pub(super) struct Dynamic {
    queue: VecDeque<Pending>,
    max_rows: u32,
    preferred: Vec<u32>,
    max_delay: Duration,
    /// Which inputs may have other shapes in each request.
    ragged: Vec<bool>,
}

impl Dynamic {
    pub(super) fn new(config: &DynamicBatching, max_rows: u32, ragged: Vec<bool>) -> Dynamic {
        let preferred =
            if config.preferred.is_empty() { vec![max_rows] } else { config.preferred.clone() };
        let max_delay = config.max_queue_delay;
        Dynamic { queue: VecDeque::new(), max_rows, preferred, max_delay, ragged }
    }
}

/// The head of a queue that can run as one batch.
struct Head {
    /// All that fits, and the rows in it.
    all: usize,
    rows: u32,
    /// The longest part whose rows are a preferred size, 0 if there is none.
    preferred: usize,
    /// Something waits that does not fit.
    is_closed: bool,
}

impl Scheduler for Dynamic {
    fn push(&mut self, pending: Pending) -> Result<(), Box<Pending>> {
        if MAX_QUEUE <= self.queue.len() {
            return Err(Box::new(pending));
        }
        self.queue.push_back(pending);
        Ok(())
    }

    fn next(&mut self, now: Instant) -> Next {
        let Some(oldest) = self.queue.front() else { return Next::Empty };
        let due = oldest.reply.since() + self.max_delay;
        let is_overdue = !self.max_delay.is_zero() && due <= now;
        let head = self.head();
        let largest = self.preferred.iter().copied().max().unwrap_or(self.max_rows);
        let count = if head.preferred != 0 && !is_overdue {
            head.preferred
        } else if head.is_closed || largest <= head.rows || self.max_delay.is_zero() || is_overdue {
            head.all
        } else {
            return Next::WaitUntil(due);
        };
        Next::Run(self.queue.drain(..count).collect())
    }

    fn queue(&mut self) -> &mut VecDeque<Pending> {
        &mut self.queue
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

impl Dynamic {
    fn head(&self) -> Head {
        let mut head = Head { all: 0, rows: 0, preferred: 0, is_closed: false };
        for pending in &self.queue {
            let rows = head.rows.saturating_add(pending.request.rows());
            let fits = head.all == 0 || (rows <= self.max_rows && self.joins(pending));
            if !fits {
                head.is_closed = true;
                break;
            }
            head.all += 1;
            head.rows = rows;
            if self.preferred.contains(&rows) {
                head.preferred = head.all;
            }
        }
        head.is_closed |= head.rows == self.max_rows;
        head
    }

    /// The same inputs are there as in the first request, with the same dimensions but for the
    /// batch; ragged ones need only be there.
    fn joins(&self, other: &Pending) -> bool {
        let first = &self.queue[0].request.inputs;
        let same = |((a, b), ragged): ((&Option<Tensor>, &Option<Tensor>), &bool)| match (a, b) {
            (Some(a), Some(b)) => *ragged || a.shape().iter().skip(1).eq(b.shape().iter().skip(1)),
            (None, None) => true,
            _ => false,
        };
        first.iter().zip(&other.request.inputs).zip(&self.ragged).all(same)
    }
}

/// Queues a request that was taken out but not begun among those of its age.
pub(super) fn put_back(queue: &mut VecDeque<Pending>, pending: Pending) {
    let since = pending.reply.since();
    let place = queue.iter().position(|it| since < it.reply.since()).unwrap_or(queue.len());
    queue.insert(place, pending);
}

/// Takes out requests at the front whose callers have gone.
pub(super) fn cancelled_first(queue: &mut VecDeque<Pending>) -> Option<Pending> {
    let is_gone = queue.front().is_some_and(|it| it.request.context.is_stopped());
    if is_gone { queue.pop_front() } else { None }
}

/// Takes out all such requests, wherever they wait: nobody may ever get to the front.
pub(super) fn cancelled(queue: &mut VecDeque<Pending>) -> Vec<Pending> {
    let is_gone = |it: &Pending| it.request.context.is_stopped();
    if !queue.iter().any(is_gone) {
        return Vec::new();
    }
    let (gone, waiting) = queue.drain(..).partition::<Vec<Pending>, _>(is_gone);
    queue.extend(waiting);
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::{
        request::{Reply, Request},
        tensor::DataType,
    };

    fn waiting(rows: u32, width: i64, since: Instant) -> Pending {
        let bytes = vec![0u8; rows as usize * width as usize];
        let shape = [i64::from(rows), width].into_iter().collect();
        let input = Tensor::new(DataType::Uint8, shape, bytes.into()).unwrap();
        let request = Request { inputs: vec![Some(input)], batch: rows, ..Request::default() };
        let (sender, _) = tokio::sync::oneshot::channel();
        Pending { request, reply: Reply::new_at(sender, since) }
    }

    /// Arrivals are `(ms, rows, width)`; expected batches are `(ms, rows of each request)`.
    /// An instance is always idle.
    fn check(preferred: &[u32], arrivals: &[(u64, u32, i64)], expected: &[(u64, &[u32])]) {
        check_with(false, preferred, arrivals, expected);
    }

    fn check_with(
        ragged: bool,
        preferred: &[u32],
        arrivals: &[(u64, u32, i64)],
        expected: &[(u64, &[u32])],
    ) {
        let config = DynamicBatching {
            preferred: preferred.to_vec(),
            max_queue_delay: Duration::from_millis(10),
            preserve_ordering: false,
        };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut scheduler = Dynamic::new(&config, 8, vec![ragged]);
        let mut batches = Vec::new();
        for ms in 0..100 {
            for &(_, rows, width) in arrivals.iter().filter(|it| it.0 == ms) {
                assert!(scheduler.push(waiting(rows, width, at(ms))).is_ok());
            }
            while let Next::Run(batch) = scheduler.next(at(ms)) {
                batches.push((ms, batch.iter().map(|it| it.request.rows()).collect::<Vec<u32>>()));
            }
        }
        let expected: Vec<_> = expected.iter().map(|(ms, rows)| (*ms, rows.to_vec())).collect();
        assert_eq!(batches, expected);
    }

    #[test]
    fn waits_for_company_but_not_forever() {
        check(&[], &[(0, 1, 4), (3, 1, 4)], &[(10, &[1, 1])]);
    }

    #[test]
    fn a_full_batch_does_not_wait() {
        check(&[], &[(0, 4, 4), (3, 4, 4)], &[(3, &[4, 4])]);
    }

    #[test]
    fn a_request_that_does_not_fit_starts_the_next_batch() {
        check(&[], &[(0, 6, 4), (1, 3, 4)], &[(1, &[6]), (11, &[3])]);
    }

    #[test]
    fn a_preferred_size_runs_at_once_and_the_rest_waits() {
        check(&[4], &[(0, 2, 4), (2, 2, 4), (2, 1, 4)], &[(2, &[2, 2]), (12, &[1])]);
    }

    #[test]
    fn other_dimensions_do_not_join() {
        check(&[], &[(0, 1, 4), (1, 1, 5), (2, 1, 5)], &[(1, &[1]), (11, &[1, 1])]);
    }

    #[test]
    fn ragged_inputs_join_whatever_their_dimensions() {
        check_with(true, &[], &[(0, 1, 4), (1, 2, 5), (2, 1, 0)], &[(10, &[1, 2, 1])]);
        check_with(true, &[], &[(0, 7, 4), (1, 2, 5)], &[(1, &[7]), (11, &[2])]);
    }

    #[test]
    fn what_was_not_begun_is_queued_where_it_was() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut queue: VecDeque<_> = [3, 5, 7].map(|ms| waiting(1, 1, at(ms))).into();
        for ms in [1, 2, 6, 9] {
            put_back(&mut queue, waiting(1, 1, at(ms)));
        }
        let order: Vec<u128> =
            queue.iter().map(|it| it.reply.since().duration_since(start).as_millis()).collect();
        assert_eq!(order, [1, 2, 3, 5, 6, 7, 9]);
    }

    #[test]
    fn cancelled_requests_are_found_behind_others() {
        let mut scheduler = Direct::default();
        let pending = waiting(1, 1, Instant::now());
        pending.request.context.cancel();
        assert!(scheduler.push(waiting(1, 1, Instant::now())).is_ok());
        assert!(scheduler.push(pending).is_ok());
        assert!(cancelled_first(scheduler.queue()).is_none());
        assert_eq!(cancelled(scheduler.queue()).len(), 1);
        assert!(matches!(scheduler.next(Instant::now()), Next::Run(_)));
        assert!(matches!(scheduler.next(Instant::now()), Next::Empty));
    }
}
