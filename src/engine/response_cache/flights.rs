//! Single flight: of equal requests at the same time one is executed, and the others wait for its
//! answer.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use super::key::AnswerKey;

/// Requests that wait for one execution, at most; further ones are executed themselves.
const MAX_FOLLOWERS: usize = 4096;

/// Requests of one model that are executed, each with those that wait for its answer.
pub(super) struct Flights<W>(Mutex<HashMap<AnswerKey, Flight<W>>>);

struct Flight<W> {
    /// Of the one that is executed: nobody waits for one that others go before.
    priority: u64,
    followers: VecDeque<W>,
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
    /// A request with this key. One that `may_wait` follows an equal one with the same priority.
    pub(super) fn join(&self, key: AnswerKey, priority: u64, may_wait: bool, who: W) -> Join<W> {
        let mut flights = self.0.lock();
        let Some(flight) = flights.get_mut(&key) else {
            flights.insert(key, Flight { priority, followers: VecDeque::new() });
            return Join::Leads(who);
        };
        let is_full = MAX_FOLLOWERS <= flight.followers.len();
        if !may_wait || is_full || flight.priority != priority {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: AnswerKey = AnswerKey(1);

    #[test]
    fn equal_requests_wait_for_the_first_one() {
        let flights = Flights::default();
        assert_eq!(flights.join(KEY, 0, true, "a"), Join::Leads("a"));
        assert_eq!(flights.join(KEY, 0, true, "b"), Join::Follows);
        assert_eq!(flights.join(KEY, 0, true, "c"), Join::Follows);
        assert_eq!(flights.join(AnswerKey(2), 0, true, "d"), Join::Leads("d"));
        assert_eq!(flights.end(KEY), ["b", "c"]);
        assert_eq!(flights.join(KEY, 0, true, "e"), Join::Leads("e"));
        assert!(flights.end(KEY).is_empty() && flights.end(KEY).is_empty());
    }

    #[test]
    fn who_may_not_wait_or_has_another_priority_is_executed() {
        let flights = Flights::default();
        flights.join(KEY, 2, true, "a");
        assert_eq!(flights.join(KEY, 2, false, "b"), Join::Alone("b"));
        assert_eq!(flights.join(KEY, 1, true, "c"), Join::Alone("c"));
        for _ in 0..MAX_FOLLOWERS {
            assert_eq!(flights.join(KEY, 2, true, "d"), Join::Follows);
        }
        assert_eq!(flights.join(KEY, 2, true, "e"), Join::Alone("e"));
    }

    #[test]
    fn one_that_gives_up_is_followed_by_the_next_that_does_not() {
        let flights = Flights::default();
        for who in ["a", "gone", "b", "c"] {
            flights.join(KEY, 0, true, who);
        }
        let next = || flights.next(KEY, |it| *it != "gone");
        assert_eq!(next(), (Some("b"), vec!["gone"]));
        assert_eq!(flights.join(KEY, 0, true, "d"), Join::Follows);
        assert_eq!(next(), (Some("c"), vec![]));
        assert_eq!(next(), (Some("d"), vec![]));
        assert_eq!(next(), (None, vec![]));
        assert_eq!(flights.join(KEY, 0, true, "e"), Join::Leads("e"));
    }
}
