//! The queue of a model's requests, first come, first served: what schedulers take them from.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::decision::Rejected;
use troupe_base::{
    error::Error,
    request::{CallChain, Pending},
};

/// The most requests that may wait for one model.
const MAX_QUEUE_SIZE: usize = 1 << 17;

/// Requests that wait, in the order in which they run.
pub(super) trait RequestQueue: Send {
    /// Queues a request that waits from then on behind those of its kind; rejects it when the
    /// queue is full.
    fn push(&mut self, pending: Pending, from: Instant) -> Result<(), Box<Rejected>>;

    /// Queues a request that was taken out but not begun among those of its age.
    fn put_back(&mut self, pending: Pending);

    /// All of them, the next one first.
    fn iter(&self) -> impl Iterator<Item = &Pending>;

    /// Takes out the next ones, `count` or all there are.
    fn take(&mut self, count: usize) -> Vec<Pending>;

    /// Takes out those that may not run any more though the next ones are taken: the next ones that
    /// have stopped, cancelled or past their deadline, and all that have waited too long.
    fn rejected(&mut self, now: Instant) -> Vec<Rejected>;

    /// Takes out all that have stopped.
    fn stopped(&mut self) -> Vec<Rejected>;

    /// Takes out all that have waited too long.
    fn expired(&mut self, now: Instant) -> Vec<Rejected>;

    /// When the first one will have waited too long; `None` if nobody ever does.
    fn next_due(&self) -> Option<Instant>;

    /// May a request wait too long?
    fn is_timed(&self) -> bool;

    /// How many wait.
    fn len(&self) -> usize;

    /// The models that wait in a call for one of these requests, and since when.
    fn callers(&self) -> Vec<(Arc<CallChain>, Instant)> {
        self.iter().filter_map(caller).collect()
    }
}

/// One queue for all, oldest first; nobody waits too long.
#[derive(Default)]
pub(super) struct PlainQueue {
    waiting: VecDeque<Pending>,
}

/// The models that wait in a call for this request, and since when.
pub(super) fn caller(pending: &Pending) -> Option<(Arc<CallChain>, Instant)> {
    Some((pending.request.context.call_chain.clone()?, pending.reply.since()))
}

/// Rejects a request for which there is no room.
pub(super) fn full(pending: Pending) -> Box<Rejected> {
    let tag = pending.request.context.tag();
    let error = Error::unavailable(format!("{tag}Exceeds maximum queue size"));
    Box::new(Rejected { pending, error })
}

/// Is this more than may wait for any model?
pub(super) fn is_too_long(waiting: usize) -> bool {
    MAX_QUEUE_SIZE <= waiting
}

impl RequestQueue for PlainQueue {
    fn push(&mut self, pending: Pending, _: Instant) -> Result<(), Box<Rejected>> {
        if is_too_long(self.waiting.len()) {
            return Err(full(pending));
        }
        self.waiting.push_back(pending);
        Ok(())
    }

    fn put_back(&mut self, pending: Pending) {
        let since = pending.reply.since();
        let younger = self.waiting.iter().position(|other| since < other.reply.since());
        self.waiting.insert(younger.unwrap_or(self.waiting.len()), pending);
    }

    fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.waiting.iter()
    }

    fn take(&mut self, count: usize) -> Vec<Pending> {
        self.waiting.drain(..count.min(self.waiting.len())).collect()
    }

    fn rejected(&mut self, _: Instant) -> Vec<Rejected> {
        let mut rejected = Vec::new();
        while let Some(error) = self.waiting.front().and_then(|it| it.request.context.stopped()) {
            rejected.extend(self.waiting.pop_front().map(|pending| Rejected { pending, error }));
        }
        rejected
    }

    fn stopped(&mut self) -> Vec<Rejected> {
        if !self.waiting.iter().any(|pending| pending.request.context.is_stopped()) {
            return Vec::new();
        }
        let mut rejected = Vec::new();
        for pending in std::mem::take(&mut self.waiting) {
            match pending.request.context.stopped() {
                Some(error) => rejected.push(Rejected { pending, error }),
                None => self.waiting.push_back(pending),
            }
        }
        rejected
    }

    fn expired(&mut self, _: Instant) -> Vec<Rejected> {
        Vec::new()
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::testing::waiting, *};

    #[test]
    fn what_was_not_begun_is_queued_where_it_was() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut queue = PlainQueue { waiting: [3, 5, 7].map(|ms| waiting(1, 1, at(ms))).into() };
        for ms in [1, 2, 6, 9] {
            queue.put_back(waiting(1, 1, at(ms)));
        }
        let age = |it: &Pending| it.reply.since().duration_since(start).as_millis();
        let order: Vec<u128> = queue.waiting.iter().map(age).collect();
        assert_eq!(order, [1, 2, 3, 5, 6, 7, 9]);
    }

    /// `c` is cancelled, `d` has a deadline that is over, `-` waits; expected are those left at the
    /// front, and those left after everybody was looked at.
    fn check(queue: &str, front: &str, all: &str) {
        let make = || {
            let now = Instant::now();
            let pending = |state| {
                let mut pending = waiting(1, 1, now);
                if state == 'd' {
                    let context = Arc::make_mut(&mut pending.request.context);
                    context.deadline = Some(now);
                }
                if state == 'c' {
                    pending.request.context.cancel();
                }
                pending
            };
            PlainQueue { waiting: queue.chars().map(pending).collect() }
        };
        let left = |queue: &PlainQueue| {
            let state = |it: &Pending| match it.request.context.stopped() {
                None => '-',
                Some(error) if error.to_string() == Error::cancelled().to_string() => 'c',
                Some(_) => 'd',
            };
            queue.waiting.iter().map(state).collect::<String>()
        };
        let mut one = make();
        assert_eq!(one.rejected(Instant::now()).len(), queue.len() - front.len());
        assert_eq!(left(&one), front);
        let mut one = make();
        assert_eq!(one.stopped().len(), queue.len() - all.len());
        assert_eq!(left(&one), all);
    }

    #[test]
    fn stopped_requests_are_found_at_the_front_and_behind_others() {
        check("", "", "");
        check("--", "--", "--");
        check("cd-c", "-c", "-");
        check("-cd-", "-cd-", "--");
        check("dcd", "", "");
    }

    #[test]
    fn a_full_queue_says_so() {
        let mut queue = PlainQueue::default();
        let now = Instant::now();
        let pending = waiting(1, 1, now);
        let request = pending.request.clone();
        for _ in 0..MAX_QUEUE_SIZE {
            let reply = troupe_base::request::Reply::channel().0;
            assert!(queue.push(Pending { request: request.clone(), reply }, now).is_ok());
        }
        let Err(rejected) = queue.push(pending, now) else { panic!("the queue is full") };
        let text = "[request id: <id_unknown>] Exceeds maximum queue size";
        assert_eq!(rejected.error.to_string(), text);
    }
}
