//! Single flight: of equal requests at the same time one is executed, and the others wait for its
//! answer.

use std::{
    collections::{HashMap, VecDeque},
    mem,
};

use parking_lot::Mutex;

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
            flights.insert(key, Flight { urgency, followers: VecDeque::new() });
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

    /// Takes those out that wait for the one with this key and are late.
    pub(super) fn expire(&self, key: AnswerKey, is_late: impl Fn(&W) -> bool) -> Vec<W> {
        let mut flights = self.0.lock();
        flights.get_mut(&key).map(|flight| flight.take_out(is_late)).unwrap_or_default()
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
}
