//! The sharded queue: a queue for each batcher of one model, from which the others take what it
//! would keep waiting.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    decision::{Decision, Rejected, Scheduler},
    queue::{PlainQueue, RequestQueue, full, is_too_long},
};
use crate::instance::FreeSlots;
use troupe_base::request::{CallChain, Pending};

/// A request may run before an older one of another queue if that is not older by more: whoever
/// runs what came in on its own thread saves the way to the other.
const MAX_OVERTAKING: Duration = Duration::from_millis(1);

/// What waits for one model, in a queue for each of its batchers. Clones share it.
///
/// One lock for all of them: what each request does under it takes less than a message would. Only
/// the sweep, once a second, and what is put back look through a queue there.
#[derive(Clone)]
pub(in crate::batcher) struct ShardedQueue(Arc<Mutex<Queues>>);

struct Queues {
    shards: Vec<PlainQueue>,
    /// How many requests wait in all of them.
    len: usize,
    is_closed: bool,
}

/// What became of a request that was to be queued.
pub(in crate::batcher) enum Pushed {
    Queued,
    /// Too many wait already.
    Full(Box<Rejected>),
    /// Nobody will ever take it: to be dropped, which answers it.
    Closed(Box<Pending>),
}

impl ShardedQueue {
    /// For so many batchers.
    pub(in crate::batcher) fn new(shards: usize) -> ShardedQueue {
        let shards = (0..shards).map(|_| PlainQueue::default()).collect();
        ShardedQueue(Arc::new(Mutex::new(Queues { shards, len: 0, is_closed: false })))
    }

    /// Queues a request for this batcher first.
    pub(in crate::batcher) fn push(&self, shard: usize, pending: Pending) -> Pushed {
        let since = pending.reply.since();
        let mut queues = self.0.lock();
        if queues.is_closed {
            return Pushed::Closed(Box::new(pending));
        }
        if is_too_long(queues.len) {
            return Pushed::Full(full(pending));
        }
        match queues.shards[shard].push(pending, since) {
            Ok(()) => {
                queues.len += 1;
                Pushed::Queued
            }
            Err(rejected) => Pushed::Full(rejected),
        }
    }

    /// Is there anything to run?
    pub(in crate::batcher) fn is_empty(&self) -> bool {
        self.0.lock().len == 0
    }

    /// Nothing is taken out any more; answers what waits, by dropping it.
    pub(in crate::batcher) fn close(&self) {
        let mut queues = self.0.lock();
        queues.is_closed = true;
        queues.len = 0;
        let waiting: Vec<PlainQueue> = queues.shards.iter_mut().map(std::mem::take).collect();
        // Whoever is answered may ask again.
        drop(queues);
        drop(waiting);
    }

    /// Will anything be taken out?
    pub(in crate::batcher) fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }
}

impl Queues {
    /// Whose requests this batcher runs next:
    ///
    /// 1. another's, if the oldest of them is much older than the oldest of its own;
    /// 2. its own;
    /// 3. if they could begin at once, the oldest of another's.
    fn source(&self, shard: usize, now: Instant, begins: bool) -> Option<usize> {
        let since = |queue: &PlainQueue| queue.iter().next().map(|it| it.reply.since());
        let own = since(&self.shards[shard]);
        let others = self.shards.iter().enumerate().filter(|(index, _)| *index != shard);
        let oldest = others.filter_map(|(index, it)| Some((since(it)?, index))).min();
        match (own, oldest) {
            (own, Some((since, other))) if since + MAX_OVERTAKING < own.unwrap_or(now) => {
                Some(other)
            }
            (Some(_), _) => Some(shard),
            (None, Some((_, other))) if begins => Some(other),
            _ => None,
        }
    }
}

/// The scheduler of one batcher: first come, first served, but its own before those of others.
pub(in crate::batcher) struct Sharded {
    queue: ShardedQueue,
    shard: usize,
    /// What is handed over now begins at once.
    begins: bool,
}

impl Sharded {
    pub(in crate::batcher) fn new(queue: ShardedQueue, shard: usize) -> Sharded {
        Sharded { queue, shard, begins: false }
    }
}

impl Scheduler for Sharded {
    fn push(&mut self, pending: Pending, _: Instant) -> Result<(), Box<Rejected>> {
        match self.queue.push(self.shard, pending) {
            Pushed::Queued => Ok(()),
            Pushed::Full(rejected) => Err(rejected),
            Pushed::Closed(pending) => {
                drop(pending);
                Ok(())
            }
        }
    }

    fn put_back(&mut self, pending: Pending) {
        let mut queues = self.queue.0.lock();
        if queues.is_closed {
            drop(queues);
            return drop(pending);
        }
        queues.len += 1;
        queues.shards[self.shard].put_back(pending);
    }

    fn next(&mut self, now: Instant, free: &FreeSlots<'_>) -> Decision {
        self.begins = free.begins().unwrap_or(self.begins);
        let mut queues = self.queue.0.lock();
        let Some(source) = queues.source(self.shard, now, self.begins) else {
            return Decision::Idle;
        };
        let rejected = queues.shards[source].rejected(now);
        if !rejected.is_empty() {
            queues.len -= rejected.len();
            return Decision::Reject(rejected);
        }
        let batch = queues.shards[source].take(1);
        queues.len -= batch.len();
        match batch.is_empty() {
            true => Decision::Idle,
            false => Decision::run(batch),
        }
    }

    fn stopped(&mut self) -> Vec<Rejected> {
        let mut queues = self.queue.0.lock();
        let stopped = queues.shards[self.shard].stopped();
        queues.len -= stopped.len();
        stopped
    }

    fn expire(&mut self, _: Instant) -> Vec<Rejected> {
        Vec::new()
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn callers(&self) -> Vec<(Arc<CallChain>, Instant)> {
        self.queue.0.lock().shards[self.shard].callers()
    }

    fn len(&self) -> usize {
        self.queue.0.lock().len
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::waiting, *};

    /// Each queue is the ages of its requests in ms. Slots are given requests one after the other:
    /// `b` is one that begins at once, `q` one where work waits. Expected are the queues they come
    /// from, `-` for none.
    fn check(queues: &[&[u64]], shard: usize, slots: &str, expected: &str) {
        let now = Instant::now();
        let queue = ShardedQueue::new(queues.len());
        for (index, ages) in queues.iter().enumerate() {
            for age in *ages {
                let pending = waiting(1 + index as u32, 1, now - Duration::from_millis(*age));
                assert!(matches!(queue.push(index, pending), Pushed::Queued));
            }
        }
        let mut scheduler = Sharded::new(queue, shard);
        let take = |slot: char| {
            scheduler.begins = slot == 'b';
            match scheduler.next(now, &FreeSlots::only(0)) {
                Decision::Run { batch, .. } => (batch[0].request.batch - 1).to_string(),
                _ => "-".to_owned(),
            }
        };
        let taken: String = slots.chars().map(take).collect();
        assert_eq!(taken, expected, "{queues:?} for {shard}: {slots}");
    }

    #[test]
    fn a_batcher_runs_its_own_requests_before_those_of_others() {
        check(&[&[3, 2], &[3, 3]], 0, "bbbbb", "0011-");
        check(&[&[3, 2], &[3, 3]], 1, "bbb", "110");
    }

    #[test]
    fn of_the_others_it_runs_the_oldest() {
        check(&[&[], &[1], &[2], &[0]], 0, "bbbb", "213-");
    }

    #[test]
    fn what_could_not_begin_at_once_stays_where_it_is() {
        check(&[&[], &[1]], 0, "qb", "-1");
        check(&[&[1], &[1]], 0, "qqb", "0-1");
    }

    #[test]
    fn nobody_is_overtaken_for_long() {
        check(&[&[5, 4, 3], &[9, 7]], 0, "bbbbb", "11000");
        check(&[&[5, 4, 3], &[9, 7]], 0, "qqqqq", "11000");
        check(&[&[], &[9, 1]], 0, "qq", "1-");
    }

    #[test]
    fn the_queues_together_are_as_long_as_one_may_be() {
        let queue = ShardedQueue::new(2);
        let pending = waiting(1, 1, Instant::now());
        let request = pending.request.clone();
        for number in (0..).take_while(|number| !is_too_long(*number)) {
            let reply = troupe_base::request::Reply::channel().0;
            let pending = Pending { request: request.clone(), reply };
            assert!(matches!(queue.push(number % 2, pending), Pushed::Queued));
        }
        assert!(matches!(queue.push(0, pending), Pushed::Full(_)));
        assert!(matches!(
            Sharded::new(queue.clone(), 1).next(Instant::now(), &FreeSlots::only(0)),
            Decision::Run { .. }
        ));
        assert!(matches!(queue.push(0, waiting(1, 1, Instant::now())), Pushed::Queued));
    }

    #[test]
    fn a_batcher_sweeps_its_own_queue_and_counts_what_it_takes_out() {
        let queue = ShardedQueue::new(2);
        for shard in [0, 1, 1] {
            let pending = waiting(1, 1, Instant::now());
            pending.request.context.cancel();
            assert!(matches!(queue.push(shard, pending), Pushed::Queued));
        }
        let mut second = Sharded::new(queue.clone(), 1);
        assert_eq!((second.stopped().len(), second.len()), (2, 1));
        second.begins = true;
        let next = second.next(Instant::now(), &FreeSlots::only(0));
        assert!(matches!(next, Decision::Reject(stopped) if stopped.len() == 1));
        assert!(queue.is_empty());
    }

    #[test]
    fn what_waits_is_answered_when_the_queue_is_closed_and_nothing_is_queued_then() {
        let queue = ShardedQueue::new(2);
        let (reply, mut answer) = troupe_base::request::Reply::channel();
        let request = waiting(1, 1, Instant::now()).request;
        assert!(matches!(queue.push(1, Pending { request, reply }), Pushed::Queued));
        queue.close();
        assert!(answer.try_recv().unwrap().is_err());
        let late = queue.push(0, waiting(1, 1, Instant::now()));
        assert!(matches!(late, Pushed::Closed(_)));
        Sharded::new(queue.clone(), 0).put_back(waiting(1, 1, Instant::now()));
        assert!(queue.is_empty() && queue.is_closed());
    }
}
