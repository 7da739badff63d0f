//! What becomes of requests in flight when their worker ends: they fail, or run elsewhere.

use std::rc::Rc;

use super::{
    in_flight::{GroupEvent, GroupEvents, all_failed, failed, not_started},
    link::{WorkerLink, WorkerState},
};
use troupe_base::{backend::Completion, error::Error, request::Request};

impl WorkerLink {
    /// Fails what waits for the worker with `error`. Keeps the instance from being given more until
    /// `held` is emptied.
    ///
    /// Of `begun` groups the worker had begun the first ones; those after them may run elsewhere.
    /// One is always taken to be begun: else a request that ends its worker too early to be counted
    /// would do so for ever.
    pub(crate) fn give_up(&mut self, error: &Error, begun: u64) -> GroupEvents {
        self.detached.fail_all(error);
        self.calls.end();
        (self.seen_begun, self.is_behind) = (None, false);
        self.checks.answer(&Err(error.clone()));
        let mut events = GroupEvents::new();
        let mut is_first = true;
        for mut flight in self.in_flight.drain(..) {
            let done = flight.done.clone();
            for (group, number, it) in flight.open() {
                let was_begun = std::mem::take(&mut is_first) || number < begun;
                events.push(match it.requests.take() {
                    Some(requests) if !was_begun => {
                        GroupEvent::NotStarted(done.clone(), group, requests)
                    }
                    _ => failed(&done, group, error),
                });
            }
            flight.done.has_stopped();
            self.held.push(flight.done);
        }
        events
    }

    /// What an instance without a worker does with work: if it will have one soon or another one
    /// has one, it is queued anew, and this one is given nothing until it has a worker again.
    pub(crate) fn turn_away(
        &mut self,
        groups: Vec<Vec<Request>>,
        done: Rc<dyn Completion>,
    ) -> GroupEvents {
        let WorkerState::Down { why, is_brief } = &self.state else { return GroupEvents::new() };
        if !is_brief && !self.setup.health.is_ready() {
            return all_failed(&groups, &done, &Error::crashed(why.as_str()));
        }
        done.has_stopped();
        self.held.push(done.clone());
        not_started(groups, &done)
    }

    /// Lets the instance be given work, which it will answer or turn away.
    pub(crate) fn take_more(&mut self) -> Vec<Rc<dyn Completion>> {
        std::mem::take(&mut self.held)
    }
}
