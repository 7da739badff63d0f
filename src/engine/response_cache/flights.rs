//! Single flight: of equal requests at the same time one is executed, and the others wait for its
//! answer.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    time::Instant,
};

use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::key::AnswerKey;

/// Requests that wait for one execution, at most; further ones are executed themselves.
const MAX_FOLLOWERS: usize = 4096;

/// Requests of one model that are executed, each with those that wait for its answer.
pub(super) struct Flights<W>(Mutex<HashMap<AnswerKey, Flight<W>>>);

struct Flight<W> {
    /// Of the one that is executed: nobody waits for one that others go before, or that the queue
    /// gives up earlier or later.
    urgency: Urgency,
    followers: VecDeque<W>,
    /// For the first of them that will have waited too long, if there may be one.
    timer: Option<FlightTimer>,
}

/// A task that sleeps until then; it ends with the flight.
struct FlightTimer {
    at: Instant,
    task: AbortHandle,
}

impl Drop for FlightTimer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a request says of its place in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Urgency {
    pub(super) priority: u64,
    /// Microseconds; 0: the client said nothing.
    pub(super) timeout_us: u64,
}

/// What becomes of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Join<W> {
    /// It is executed, and others may wait for it.
    Leads(W),
    /// It waits.
    Follows,
    /// It is executed, and nobody waits for it.
    Alone(W),
}

impl<W> Default for Flights<W> {
    fn default() -> Flights<W> {
        Flights(Mutex::default())
    }
}

impl<W> Flights<W> {
    /// A request with this key. One that `may_wait` follows an equal one that is as urgent.
    pub(super) fn join(&self, key: AnswerKey, urgency: Urgency, may_wait: bool, who: W) -> Join<W> {
        let mut flights = self.0.lock();
        let Some(flight) = flights.get_mut(&key) else {
            flights.insert(key, Flight { urgency, followers: VecDeque::new(), timer: None });
            return Join::Leads(who);
        };
        let is_full = MAX_FOLLOWERS <= flight.followers.len();
        if !may_wait || is_full || flight.urgency != urgency {
            return Join::Alone(who);
        }
        flight.followers.push_back(who);
        Join::Follows
    }

    /// The one that is executed has an answer: those that wait for it.
    pub(super) fn end(&self, key: AnswerKey) -> VecDeque<W> {
        let flight = self.0.lock().remove(&key);
        flight.map(|it| it.followers).unwrap_or_default()
    }

    /// The one that is executed has none: the next one that `goes_on` leads, if there is one, and
    /// those before it, which do not.
    pub(super) fn next(&self, key: AnswerKey, goes_on: impl Fn(&W) -> bool) -> (Option<W>, Vec<W>) {
        let mut flights = self.0.lock();
        let mut stopped = Vec::new();
        if let Some(flight) = flights.get_mut(&key) {
            while let Some(next) = flight.followers.pop_front() {
                if goes_on(&next) {
                    return (Some(next), stopped);
                }
                stopped.push(next);
            }
            flights.remove(&key);
        }
        (None, stopped)
    }

    /// One that waits for the one with this key will be late then: starts a task that looks, unless
    /// there is one that looks no later.
    pub(super) fn look_at(&self, key: AnswerKey, at: Instant, task: impl FnOnce() -> AbortHandle) {
        let mut flights = self.0.lock();
        if let Some(flight) = flights.get_mut(&key)
            && flight.timer.as_ref().is_none_or(|timer| at < timer.at)
        {
            flight.timer = Some(FlightTimer { at, task: task() });
        }
    }

    /// Takes those out that wait for the one with this key and are late. From then on no task looks
    /// after the others.
    pub(super) fn expire(&self, key: AnswerKey, is_late: impl Fn(&W) -> bool) -> Vec<W> {
        let mut flights = self.0.lock();
        let Some(flight) = flights.get_mut(&key) else { return Vec::new() };
        flight.timer = None;
        flight.take_out(is_late)
    }

    /// When the first of those is late that wait for the one with this key.
    pub(super) fn next_expiry(
        &self,
        key: AnswerKey,
        expiry: impl Fn(&W) -> Option<Instant>,
    ) -> Option<Instant> {
        self.0.lock().get(&key)?.followers.iter().filter_map(expiry).min()
    }

    /// Takes those out that wait and `has_stopped`; says, too, whether others still wait.
    pub(super) fn sweep(&self, has_stopped: impl Fn(&W) -> bool) -> (Vec<W>, bool) {
        let mut flights = self.0.lock();
        let (mut stopped, mut is_waited) = (Vec::new(), false);
        for flight in flights.values_mut() {
            stopped.extend(flight.take_out(&has_stopped));
            is_waited |= !flight.followers.is_empty();
        }
        (stopped, is_waited)
    }
}

impl<W> Flight<W> {
    /// The others stay in their order.
    fn take_out(&mut self, is_out: impl Fn(&W) -> bool) -> Vec<W> {
        if !self.followers.iter().any(&is_out) {
            return Vec::new();
        }
        let (out, rest): (Vec<W>, Vec<W>) =
            mem::take(&mut self.followers).into_iter().partition(is_out);
        self.followers = rest.into();
        out
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::pending, time::Duration};

    use super::*;

    const KEY: AnswerKey = AnswerKey(1);
    const USUAL: Urgency = Urgency { priority: 0, timeout_us: 0 };
    const LATE: Urgency = Urgency { priority: 2, timeout_us: 0 };

    #[test]
    fn equal_requests_wait_for_the_first_one() {
        let flights = Flights::default();
        assert_eq!(flights.join(KEY, USUAL, true, "a"), Join::Leads("a"));
        assert_eq!(flights.join(KEY, USUAL, true, "b"), Join::Follows);
        assert_eq!(flights.join(KEY, USUAL, true, "c"), Join::Follows);
        assert_eq!(flights.join(AnswerKey(2), USUAL, true, "d"), Join::Leads("d"));
        assert_eq!(flights.end(KEY), ["b", "c"]);
        assert_eq!(flights.join(KEY, USUAL, true, "e"), Join::Leads("e"));
        assert!(flights.end(KEY).is_empty() && flights.end(KEY).is_empty());
    }

    #[test]
    fn who_may_not_wait_or_has_another_priority_is_executed() {
        let flights = Flights::default();
        flights.join(KEY, LATE, true, "a");
        assert_eq!(flights.join(KEY, LATE, false, "b"), Join::Alone("b"));
        let others = [Urgency { priority: 1, ..LATE }, Urgency { timeout_us: 9, ..LATE }];
        for other in others {
            assert_eq!(flights.join(KEY, other, true, "c"), Join::Alone("c"));
        }
        for _ in 0..MAX_FOLLOWERS {
            assert_eq!(flights.join(KEY, LATE, true, "d"), Join::Follows);
        }
        assert_eq!(flights.join(KEY, LATE, true, "e"), Join::Alone("e"));
    }

    #[test]
    fn one_that_gives_up_is_followed_by_the_next_that_does_not() {
        let flights = Flights::default();
        for who in ["a", "gone", "b", "c"] {
            flights.join(KEY, USUAL, true, who);
        }
        let next = || flights.next(KEY, |it| *it != "gone");
        assert_eq!(next(), (Some("b"), vec!["gone"]));
        assert_eq!(flights.join(KEY, USUAL, true, "d"), Join::Follows);
        assert_eq!(next(), (Some("c"), vec![]));
        assert_eq!(next(), (Some("d"), vec![]));
        assert_eq!(next(), (None, vec![]));
        assert_eq!(flights.join(KEY, USUAL, true, "e"), Join::Leads("e"));
    }

    #[test]
    fn a_sweep_takes_out_those_that_stopped_and_leaves_the_order_of_the_others() {
        let flights = Flights::default();
        for who in ["a", "gone", "b", "gone too", "c"] {
            flights.join(KEY, USUAL, true, who);
        }
        flights.join(AnswerKey(2), USUAL, true, "gone but executed");
        let sweep = || flights.sweep(|it| it.starts_with("gone"));
        assert_eq!(sweep(), (vec!["gone", "gone too"], true));
        assert_eq!(sweep(), (vec![], true));
        assert_eq!(flights.expire(AnswerKey(2), |_| true), Vec::<&str>::new());
        assert_eq!(flights.expire(KEY, |it| *it == "b"), ["b"]);
        assert_eq!(flights.end(KEY), ["c"]);
        assert_eq!(flights.expire(KEY, |_| true), Vec::<&str>::new());
        assert_eq!(sweep(), (vec![], false));
    }

    #[tokio::test]
    async fn one_task_looks_after_those_that_may_be_late_and_ends_with_the_flight() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let flights = Flights::default();
        let tasks = RefCell::new(Vec::new());
        let look_at = |ms| {
            flights.look_at(KEY, at(ms), || {
                let task = tokio::spawn(pending::<()>());
                tasks.borrow_mut().push(task.abort_handle());
                task.abort_handle()
            });
        };
        // Whether those that were started have ended.
        let ended = async || {
            // An aborted task ends when the runtime gets to it.
            for _ in 0..9 {
                tokio::task::yield_now().await;
            }
            tasks.borrow().iter().map(AbortHandle::is_finished).collect::<Vec<_>>()
        };
        look_at(1);
        assert!(ended().await.is_empty(), "there is nobody to look after");
        for late_at in [9, 5, 7] {
            flights.join(KEY, USUAL, true, late_at);
            look_at(late_at);
        }
        assert_eq!(ended().await, [true, false], "one that looks sooner takes the place");
        assert_eq!(flights.next_expiry(KEY, |it| Some(at(*it))), Some(at(5)));
        assert_eq!(flights.expire(KEY, |it| *it == 5), [5]);
        assert_eq!(flights.next_expiry(KEY, |it| Some(at(*it))), Some(at(7)));
        look_at(7);
        look_at(8);
        assert_eq!(ended().await, [true, true, false]);
        flights.end(KEY);
        assert_eq!(ended().await, [true, true, true]);
    }
}
