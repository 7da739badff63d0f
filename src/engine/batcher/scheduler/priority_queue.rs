//! The queue of a model with priority levels or queue policies: the highest level is served first,
//! and who waited too long is refused or served behind the others of its level.

use std::{collections::BTreeMap, time::Instant};

use super::{
    decision::Rejected,
    queue::{RequestQueue, full, is_too_long},
};
use troupe_base::{config::PriorityLevels, error::Error, request::Pending};

/// Where a request stands: its level, whether it was delayed, and its turn among those.
type Place = (u64, bool, Turn);

/// The time from which on it waits, and a number that no other request has.
type Turn = (Instant, u64);

/// Requests in the order in which they run.
pub(super) struct PriorityQueue {
    levels: PriorityLevels,
    waiting: BTreeMap<Place, QueuedRequest>,
    /// By level; those where nobody waits are not in it.
    sizes: BTreeMap<u64, u32>,
    /// Where those stand who may wait too long, by the time when they will have.
    due: BTreeMap<Turn, Place>,
    /// The last turn in which one was queued at the end.
    last: Option<Instant>,
    /// The number of the next request.
    next: u64,
}

struct QueuedRequest {
    pending: Pending,
    /// Its key in `due`.
    due: Option<Turn>,
}

impl PriorityQueue {
    pub(super) fn new(levels: PriorityLevels) -> PriorityQueue {
        let (waiting, sizes, due) = Default::default();
        PriorityQueue { levels, waiting, sizes, due, last: None, next: 0 }
    }

    fn insert(&mut self, level: u64, from: Instant, pending: Pending) {
        let number = self.next;
        self.next += 1;
        let place = (level, false, (from, number));
        let policy = self.levels.policy_of(level);
        let due = policy.expiry(pending.request.context.timeout_us, from).map(|at| (at, number));
        if let Some(due) = due {
            self.due.insert(due, place);
        }
        self.waiting.insert(place, QueuedRequest { pending, due });
        *self.sizes.entry(level).or_default() += 1;
    }

    fn remove(&mut self, place: Place) -> Option<Pending> {
        let QueuedRequest { pending, due } = self.waiting.remove(&place)?;
        if let Some(due) = due {
            self.due.remove(&due);
        }
        let level = place.0;
        if let Some(size) = self.sizes.get_mut(&level) {
            *size -= 1;
            if *size == 0 {
                self.sizes.remove(&level);
            }
        }
        Some(pending)
    }
}

impl RequestQueue for PriorityQueue {
    fn push(&mut self, pending: Pending, from: Instant) -> Result<(), Box<Rejected>> {
        let level = self.levels.level_of(pending.request.context.priority);
        let most = self.levels.policy_of(level).max_size;
        let size = self.sizes.get(&level).copied().unwrap_or_default();
        if is_too_long(self.waiting.len()) || (most != 0 && most <= size) {
            return Err(full(pending));
        }
        // Behind all others of its level, also where one is asked that was made before them.
        let from = self.last.map_or(from, |last| last.max(from));
        self.last = Some(from);
        self.insert(level, from, pending);
        Ok(())
    }

    fn put_back(&mut self, pending: Pending) {
        let level = self.levels.level_of(pending.request.context.priority);
        self.insert(level, pending.reply.since(), pending);
    }

    fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.waiting.values().map(|it| &it.pending)
    }

    fn take(&mut self, count: usize) -> Vec<Pending> {
        let first: Vec<Place> = self.waiting.keys().take(count).copied().collect();
        first.into_iter().filter_map(|place| self.remove(place)).collect()
    }

    fn rejected(&mut self, now: Instant) -> Vec<Rejected> {
        let mut rejected = self.expired(now);
        while let Some((place, first)) = self.waiting.first_key_value()
            && let Some(error) = first.pending.request.context.stopped()
        {
            let place = *place;
            rejected.extend(self.remove(place).map(|pending| Rejected { pending, error }));
        }
        rejected
    }

    fn stopped(&mut self) -> Vec<Rejected> {
        let all = self.waiting.iter();
        let stopped =
            all.filter_map(|(place, it)| Some((*place, it.pending.request.context.stopped()?)));
        let stopped: Vec<_> = stopped.collect();
        let remove = |(place, error)| Some(Rejected { pending: self.remove(place)?, error });
        stopped.into_iter().filter_map(remove).collect()
    }

    /// Those of levels that delay stand behind the others of their level from then on.
    fn expired(&mut self, now: Instant) -> Vec<Rejected> {
        let mut rejected = Vec::new();
        while let Some(first) = self.due.first_entry().filter(|it| it.key().0 <= now) {
            let (due, place) = first.remove_entry();
            let (level, _, turn) = place;
            if !self.levels.policy_of(level).delays {
                let error = Error::timeout_expired();
                rejected.extend(self.remove(place).map(|pending| Rejected { pending, error }));
            } else if let Some(mut delayed) = self.waiting.remove(&place) {
                delayed.due = None;
                // In the order in which their times were over.
                self.waiting.insert((level, true, (due.0, turn.1)), delayed);
            }
        }
        rejected
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    fn is_timed(&self) -> bool {
        self.levels.is_timed()
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::{super::testing::waiting, *};
    use troupe_base::config::QueuePolicy;

    const MS: Duration = Duration::from_millis(1);

    fn policy(timeout_ms: u32, delays: bool, max_size: u32) -> QueuePolicy {
        QueuePolicy { delays, timeout: MS * timeout_ms, allows_override: true, max_size }
    }

    /// Three levels, of which 2 is the default: the first delays after 10 ms, the second refuses
    /// after 10 ms, of the third two may wait, for ever.
    fn three_levels() -> PriorityLevels {
        PriorityLevels {
            levels: 3,
            default_level: 2,
            default_policy: policy(10, false, 0),
            policies: [(1, policy(10, true, 0)), (3, policy(0, false, 2))].into(),
        }
    }

    /// What the queue is told: at a millisecond, `priority/timeout name` queues a request, `! count`
    /// takes out so many, `x name` cancels one, `b` puts the last one that was taken back.
    /// Expected is what happens: a name that was taken out; `-name` if it was refused because it
    /// waited too long, `xname` if it was cancelled, `fname` if there was no room.
    fn check(levels: PriorityLevels, told: &str, expected: &str) {
        let start = Instant::now();
        let mut queue = PriorityQueue::new(levels);
        let mut contexts = std::collections::HashMap::new();
        let mut happened = Vec::new();
        let mut taken = Vec::new();
        let name = |it: &Pending| it.request.context.id.clone();
        for line in told.split(';').map(str::trim) {
            let mut words = line.split_whitespace();
            let now = start + MS * words.next().unwrap().parse().unwrap();
            let expired = queue.rejected(now);
            happened.extend(expired.iter().map(|it| match &*it.error.to_string() {
                "Request timeout expired" => format!("-{}", name(&it.pending)),
                _ => format!("x{}", name(&it.pending)),
            }));
            match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
                ("", _) => (),
                ("!", count) => {
                    let batch = queue.take(count.parse().unwrap());
                    happened.extend(batch.iter().map(name));
                    taken.extend(batch);
                }
                ("x", id) => {
                    let context: &Arc<troupe_base::request::Context> = &contexts[id];
                    context.cancel();
                }
                ("b", _) => queue.put_back(taken.pop().unwrap()),
                (numbers, id) => {
                    let (priority, timeout) = numbers.split_once('/').unwrap();
                    let mut pending = waiting(1, 1, now);
                    let context = Arc::make_mut(&mut pending.request.context);
                    context.id = id.to_owned();
                    context.priority = priority.parse().unwrap();
                    context.timeout_us = timeout.parse::<u64>().unwrap() * 1000;
                    contexts.insert(id.to_owned(), pending.request.context.clone());
                    if let Err(full) = queue.push(pending, now) {
                        let text = format!("[request id: {id}] Exceeds maximum queue size");
                        assert_eq!(full.error.to_string(), text);
                        happened.push(format!("f{id}"));
                    }
                }
            }
            let sizes: u32 = queue.sizes.values().sum();
            assert_eq!((sizes as usize, queue.iter().count()), (queue.len(), queue.len()));
            assert!(queue.due.len() <= queue.len(), "{line}");
        }
        assert_eq!(happened.join(" "), expected, "{told}");
    }

    #[test]
    fn the_highest_level_is_served_first_and_within_it_whoever_came_first() {
        let told = "0 3/0 a; 0 0/0 b; 0 1/0 c; 1 9/0 d; 1 2/0 e; 1 1/0 f; 1 3/0 g; 2 ! 3; 2 ! 9";
        check(three_levels(), told, "c f b d e a g");
    }

    #[test]
    fn who_waited_too_long_is_refused_or_stands_behind_its_level() {
        // Level 2 refuses, a request may ask for less and not for more.
        check(three_levels(), "0 2/0 a; 1 2/3 b; 1 2/99 c; 4; 10; 11; 12 ! 9", "-b -a -c");
        // Level 1 delays; b came later and has not waited too long.
        check(three_levels(), "0 1/0 a; 5 1/0 b; 5 2/0 c; 11 ! 9", "b a c");
        check(three_levels(), "0 1/0 a; 1 1/4 b; 20 1/0 c; 20 ! 9", "c b a");
        // Level 3 waits for ever, whatever a request says.
        check(three_levels(), "0 3/1 a; 9999 ! 1", "a");
    }

    #[test]
    fn no_more_wait_in_a_level_than_its_policy_says() {
        check(
            three_levels(),
            "0 3/0 a; 0 3/0 b; 0 3/0 c; 0 2/0 d; 0 ! 2; 0 3/0 e; 0 ! 9",
            "fc d a b e",
        );
        // Those that were delayed still wait.
        let levels = PriorityLevels { default_policy: policy(1, true, 1), ..Default::default() };
        check(levels, "0 7/0 a; 5 0/0 b; 5 ! 1; 5 0/0 c; 5 ! 1", "fb a c");
    }

    #[test]
    fn who_has_gone_is_found_and_who_comes_back_has_its_place() {
        check(three_levels(), "0 3/0 a; 0 1/0 b; 0 x b; 1 ! 9", "xb a");
        check(three_levels(), "0 2/0 a; 1 2/0 b; 2 ! 1; 3 b; 4 ! 9", "a a b");
        let mut queue = PriorityQueue::new(three_levels());
        let now = Instant::now();
        for _ in 0..3 {
            assert!(queue.push(waiting(1, 1, now), now).is_ok());
        }
        let second = queue.iter().nth(1).unwrap().request.context.clone();
        second.cancel();
        assert!(queue.rejected(now).is_empty(), "it is not the next one");
        assert_eq!(queue.stopped().len(), 1);
        assert_eq!((queue.len(), queue.due.len(), queue.next_due()), (2, 2, Some(now + 10 * MS)));
        queue.take(9);
        assert_eq!((queue.len(), queue.due.len(), queue.sizes.len()), (0, 0, 0));
    }
}
