//! What is in flight: the groups of requests a worker was given and has not answered.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use crate::python::protocol::decode::Cursor;
use troupe_base::{
    backend::{Completion, Executed},
    error::Error,
    request::Request,
    statistics::Timing,
};

/// A request as both sides name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey {
    /// The number of the frame it came in.
    pub(crate) sequence: u32,
    /// Its group in that frame.
    pub(crate) group: u32,
    /// Its position in the group.
    pub(crate) index: u32,
}

impl RequestKey {
    /// The next three numbers of a frame.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<RequestKey, String> {
        Ok(RequestKey { sequence: cursor.u32()?, group: cursor.u32()?, index: cursor.u32()? })
    }
}

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
    /// `None` once answered, or given back.
    pub(crate) requests: Option<Vec<Request>>,
    /// They run elsewhere: what the worker says of them is of no use.
    pub(crate) is_given_back: bool,
    /// When it was first seen that the worker had begun it.
    pub(crate) seen: Option<Instant>,
}

impl InFlightBatch {
    /// The request at `key`, if its group is not answered.
    pub(crate) fn request(&self, key: RequestKey) -> Option<&Request> {
        let group = self.groups.get(key.group as usize)?;
        group.requests.as_ref()?.get(key.index as usize)
    }

    /// Its open groups, by position, each with its place among all that the worker was given.
    pub(crate) fn open(&mut self) -> impl Iterator<Item = (usize, u64, &mut InFlightGroup)> {
        let numbered = self.groups.iter_mut().enumerate();
        let open = numbered.filter(|(_, it)| it.requests.is_some());
        open.map(|(group, it)| (group, self.before + group as u64, it))
    }
}

/// Delivered once nothing is borrowed: `done` may start more at once.
pub(crate) type GroupEvents = Vec<GroupEvent>;

/// What became of a group, for the one who started it.
pub(crate) enum GroupEvent {
    /// It was executed, or failed.
    Executed(Rc<dyn Completion>, Executed),
    /// The worker never began it.
    NotStarted(Rc<dyn Completion>, usize, Vec<Request>),
}

/// Tells those who started the groups.
pub(crate) fn deliver(events: GroupEvents) {
    for event in events {
        match event {
            GroupEvent::Executed(done, executed) => done.executed(executed),
            GroupEvent::NotStarted(done, group, requests) => done.not_started(group, requests),
        }
    }
}

/// The failure of one group.
pub(crate) fn failed(done: &Rc<dyn Completion>, group: usize, error: &Error) -> GroupEvent {
    let results = Err(error.clone());
    GroupEvent::Executed(done.clone(), Executed { group, results, timing: Timing::default() })
}

/// The failure of all groups of one start.
pub(crate) fn all_failed(
    groups: &[Vec<Request>],
    done: &Rc<dyn Completion>,
    error: &Error,
) -> GroupEvents {
    (0..groups.len()).map(|group| failed(done, group, error)).collect()
}

/// Hands all groups of one start back.
pub(crate) fn not_started(groups: Vec<Vec<Request>>, done: &Rc<dyn Completion>) -> GroupEvents {
    let back = |(group, requests)| GroupEvent::NotStarted(done.clone(), group, requests);
    groups.into_iter().enumerate().map(back).collect()
}
