//! What a worker was given and has not answered, and what becomes of it when the worker ends.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use super::Link;
use crate::{
    backend::{Done, Executed},
    error::Error,
    request::Request,
    statistics::Timing,
};

/// One `start` whose groups are not all answered.
pub(super) struct Flight {
    pub(super) sequence: u32,
    /// `None` once answered.
    pub(super) groups: Vec<Option<Vec<Request>>>,
    pub(super) left: usize,
    pub(super) begun: Instant,
    /// Time one group took to encode.
    pub(super) encode: Duration,
    pub(super) done: Rc<dyn Done>,
}

/// News to tell once nothing is borrowed: `done` may start more at once.
pub(super) type News = Vec<Told>;
pub(super) type Told = (Rc<dyn Done>, Executed);

pub(super) fn tell(news: News) {
    for (done, executed) in news {
        done.executed(executed);
    }
}

pub(super) fn failed(group: usize, error: &Error) -> Executed {
    Executed { group, results: Err(error.clone()), timing: Timing::default() }
}

pub(super) fn all_failed(groups: &[Vec<Request>], done: &Rc<dyn Done>, error: &Error) -> News {
    (0..groups.len()).map(|group| (done.clone(), failed(group, error))).collect()
}

impl Link {
    /// What waits for the worker, told `error`; the second part keeps the instance from sending more.
    pub(super) fn give_up(&mut self, error: &Error) -> (News, Vec<Rc<dyn Done>>) {
        self.open.fail_all(error);
        self.calls.end();
        self.checks.answer(&Err(error.clone()));
        let mut news = News::new();
        let mut waiting = Vec::new();
        for flight in self.in_flight.drain(..) {
            let open = flight.groups.iter().enumerate().filter(|(_, it)| it.is_some());
            news.extend(open.map(|(group, _)| (flight.done.clone(), failed(group, error))));
            waiting.push(flight.done);
        }
        (news, waiting)
    }
}
