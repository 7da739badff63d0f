//! Iterations between two decoupled steps: those that wait for room, those at work, those that ended.

use std::{collections::VecDeque, sync::Arc};

use super::{order::Order, window::Window};
use troupe_base::{
    error::Result,
    request::{Context, Credit, Request, Response},
};

/// One for each decoupled step, and one for the client.
pub(super) struct Level {
    order: Order<Ended>,
    window: Window,
    /// Behind all that have begun.
    waiting: VecDeque<Waiting>,
    /// Nothing more comes, or it would not be wanted.
    has_ended: bool,
    /// The decoupled step that reads this level is at work.
    pub(super) is_busy: bool,
}

enum Waiting {
    Begin(Made),
    End(Result<()>),
}

/// A response of a decoupled step: what an iteration begins with.
pub(super) struct Made {
    pub(super) response: Response,
    /// The batch size of the step's request.
    pub(super) batch: u32,
    /// What it says of sequences.
    pub(super) sequence: Option<Arc<Context>>,
    /// Whoever made it makes no more than it has credit for.
    pub(super) credit: Option<Arc<Credit>>,
    /// None follows.
    pub(super) is_last: bool,
}

/// How an iteration ended.
pub(super) struct Ended {
    pub(super) done: Done,
    pub(super) credit: Option<Arc<Credit>>,
    /// See `window::cost`.
    pub(super) cost: u64,
}

pub(super) enum Done {
    /// With a request to the next decoupled step.
    Asks(Request),
    /// With a response to the client.
    Answers(Response),
    /// There was none any more.
    Nothing,
}

impl Level {
    pub(super) fn new(limit: u64) -> Level {
        Level {
            order: Order::default(),
            window: Window::new(limit),
            waiting: VecDeque::new(),
            has_ended: false,
            is_busy: false,
        }
    }

    /// The one iteration that no response begins, and its number.
    pub(super) fn begin(&mut self) -> Option<u64> {
        self.has_ended = true;
        self.window.begin();
        self.order.begin(true)
    }

    /// A response waits for room from now on; unless nothing more is wanted.
    pub(super) fn add(&mut self, made: Made) {
        if !self.has_ended {
            self.has_ended = made.is_last;
            self.waiting.push_back(Waiting::Begin(made));
        }
    }

    /// Nothing comes behind what has come.
    pub(super) fn end(&mut self, how: Result<()>) {
        if !self.has_ended {
            self.has_ended = true;
            self.waiting.push_back(Waiting::End(how));
        }
    }

    /// Does a response wait for room?
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.waiting.front(), Some(Waiting::Begin(_)))
    }

    /// The response whose iteration can begin now, and the number of that.
    pub(super) fn start(&mut self, out: u64) -> Option<(Made, u64)> {
        if !self.is_waiting() || !self.window.has_room(out) {
            return None;
        }
        let Some(Waiting::Begin(made)) = self.waiting.pop_front() else { return None };
        let number = self.order.begin(made.is_last)?;
        self.window.begin();
        Some((made, number))
    }

    /// An iteration has ended and has cost up to `peak`. If it failed, those behind it are not
    /// wanted any more.
    pub(super) fn settle(&mut self, number: u64, outcome: Result<Ended>, peak: u64) {
        if !self.order.is_wanted(number) {
            return;
        }
        match &outcome {
            Ok(ended) => self.window.end(ended.cost, peak),
            Err(_) => {
                self.waiting.clear();
                self.has_ended = true;
            }
        }
        self.order.settle(number, outcome);
    }

    /// Takes what is first, if it has ended, and says whether it is the last.
    pub(super) fn next(&mut self) -> Option<(Result<Ended>, bool)> {
        if let Some((outcome, is_last)) = self.order.next() {
            if let Ok(ended) = &outcome {
                self.window.leave(ended.cost);
            }
            return Some((outcome, is_last));
        }
        if !self.order.is_empty() || self.is_waiting() {
            return None;
        }
        let Some(Waiting::End(how)) = self.waiting.pop_front() else { return None };
        Some((how.map(|()| Ended { done: Done::Nothing, credit: None, cost: 0 }), true))
    }

    /// Forgets all; nothing is wanted any more.
    pub(super) fn close(&mut self) {
        self.order.close();
        self.waiting.clear();
        self.has_ended = true;
    }

    /// Has everything come that ever will?
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Does anybody wait for this iteration?
    pub(super) fn is_wanted(&self, number: u64) -> bool {
        self.order.is_wanted(number)
    }
}
