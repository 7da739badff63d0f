//! Gives work back that a busy worker has not begun, so that another instance can have it.

use std::time::{Duration, Instant};

use super::{
    in_flight::{GroupEvent, GroupEvents},
    link::{WorkerLink, WorkerState},
};

/// A worker whose execution takes longer than this keeps what is behind it waiting. Those that are
/// handed over together usually take less than half of it, all of them.
const MAX_HELD_UP: Duration = Duration::from_millis(1);

/// What a look at a worker came to.
#[derive(Default)]
pub(crate) struct GiveBack {
    pub(crate) events: GroupEvents,
    /// It has work that it has not begun, but has not been busy for long.
    pub(crate) may_have_more: bool,
}

impl WorkerLink {
    /// Takes back all that the worker has not begun, if it has been at one execution for long.
    pub(crate) fn give_back(&mut self, now: Instant) -> GiveBack {
        let WorkerState::Up(connection) = &self.state else { return GiveBack::default() };
        if self.in_flight.is_empty() || self.is_behind || self.setup.concurrency.is_some() {
            return GiveBack::default();
        }
        let (begun, given) = (connection.progress.begun(), connection.given);
        if given <= begun {
            return GiveBack::default();
        }
        let wait = GiveBack { may_have_more: true, ..GiveBack::default() };
        let since = match self.seen_begun {
            Some((seen, since)) if seen == begun => since,
            _ => now,
        };
        self.seen_begun = Some((begun, since));
        if now.saturating_duration_since(since) < MAX_HELD_UP {
            return wait;
        }
        connection.progress.take_back(begun, given);
        // What it has begun meanwhile it executes, or answers as what is to be executed anew.
        let begun = connection.progress.begun();
        let mut events = GroupEvents::new();
        for flight in &mut self.in_flight {
            let done = flight.done.clone();
            for (group, _, it) in flight.open().filter(|(_, number, _)| begun <= *number) {
                it.is_given_back = true;
                let requests = it.requests.take().unwrap_or_default();
                events.push(GroupEvent::NotStarted(done.clone(), group, requests));
            }
        }
        self.is_behind = true;
        GiveBack { events, may_have_more: false }
    }
}
