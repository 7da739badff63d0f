//! What a worker was given and has not answered, and what becomes of it when the worker ends.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use crate::python::worker::link::Link;
use crate::python::worker::link::State;
use troupe_base::{
    backend::{Completion, Executed},
    error::Error,
    request::Request,
    statistics::Timing,
};

/// One `start` whose groups are not all answered.
pub(crate) struct InFlightBatch {
    pub(crate) sequence: u32,
    /// How many groups the worker was given before these.
    pub(crate) before: u64,
    pub(crate) groups: Vec<InFlightGroup>,
    /// Groups not answered.
    pub(crate) left: usize,
    pub(crate) begun: Instant,
    /// Time one group took to encode.
    pub(crate) encode: Duration,
    pub(crate) done: Rc<dyn Completion>,
}

/// The requests of one execution.
pub(crate) struct InFlightGroup {
    /// `None` once answered.
    pub(crate) requests: Option<Vec<Request>>,
    /// When it was first seen that the worker had begun it; kept only if there is a time limit.
    pub(crate) seen: Option<Instant>,
}

impl InFlightBatch {
    /// Its open groups, by position, each with its place among all that the worker was given.
    pub(crate) fn open(&mut self) -> impl Iterator<Item = (usize, u64, &mut InFlightGroup)> {
        let numbered = self.groups.iter_mut().enumerate();
        let open = numbered.filter(|(_, it)| it.requests.is_some());
        open.map(|(group, it)| (group, self.before + group as u64, it))
    }
}

/// News to tell once nothing is borrowed: `done` may start more at once.
pub(crate) type GroupEvents = Vec<GroupEvent>;

/// What became of a group.
pub(crate) enum GroupEvent {
    Executed(Rc<dyn Completion>, Executed),
    /// The worker never began it.
    NotStarted(Rc<dyn Completion>, usize, Vec<Request>),
}

pub(crate) fn tell(news: GroupEvents) {
    for told in news {
        match told {
            GroupEvent::Executed(done, executed) => done.executed(executed),
            GroupEvent::NotStarted(done, group, requests) => done.not_started(group, requests),
        }
    }
}

pub(crate) fn failed(done: &Rc<dyn Completion>, group: usize, error: &Error) -> GroupEvent {
    let results = Err(error.clone());
    GroupEvent::Executed(done.clone(), Executed { group, results, timing: Timing::default() })
}

pub(crate) fn all_failed(
    groups: &[Vec<Request>],
    done: &Rc<dyn Completion>,
    error: &Error,
) -> GroupEvents {
    (0..groups.len()).map(|group| failed(done, group, error)).collect()
}

impl Link {
    /// What waits for the worker is told `error`. Keeps the instance from being given more until
    /// `held` is emptied.
    ///
    /// Of `begun` groups the worker had begun the first ones; those after them may run elsewhere.
    /// One is always taken to be begun: else a request that ends its worker too early to be counted
    /// would do so for ever.
    pub(crate) fn give_up(&mut self, error: &Error, begun: u64) -> GroupEvents {
        self.open.fail_all(error);
        self.calls.end();
        self.checks.answer(&Err(error.clone()));
        let mut news = GroupEvents::new();
        let mut is_first = true;
        for mut flight in self.in_flight.drain(..) {
            let done = flight.done.clone();
            for (group, number, it) in flight.open() {
                let was_begun = std::mem::take(&mut is_first) || number < begun;
                news.push(match it.requests.take() {
                    Some(requests) if !was_begun => {
                        GroupEvent::NotStarted(done.clone(), group, requests)
                    }
                    _ => failed(&done, group, error),
                });
            }
            self.held.push(flight.done);
        }
        news
    }

    /// What an instance without a worker does with work: if it will have one soon or another one has
    /// one, it is queued anew, and this one is given nothing until it has a worker again.
    pub(crate) fn turn_away(
        &mut self,
        groups: Vec<Vec<Request>>,
        done: Rc<dyn Completion>,
    ) -> GroupEvents {
        let State::Down { why, is_brief } = &self.state else { return GroupEvents::new() };
        if !is_brief && !self.setup.health.is_ready() {
            return all_failed(&groups, &done, &Error::unavailable(why.as_str()));
        }
        self.held.push(done.clone());
        let again = |(group, requests)| {
            GroupEvent::NotStarted(Rc::<dyn Completion>::clone(&done), group, requests)
        };
        groups.into_iter().enumerate().map(again).collect()
    }

    /// Lets the instance be given work, which it will answer or turn away.
    pub(crate) fn take_more(&mut self) -> Vec<Rc<dyn Completion>> {
        std::mem::take(&mut self.held)
    }
}
