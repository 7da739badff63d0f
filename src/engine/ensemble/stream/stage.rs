//! One stage of a stream: queued decoupled responses, iterations in flight, those that ended.

use std::{collections::VecDeque, sync::Arc};

use super::{iteration_order::IterationOrder, iteration_window::IterationWindow};
use troupe_base::{
    error::Result,
    request::{Context, Credit, Request, Response},
};

/// The iterations of one stage of one request.
pub(super) struct StageState {
    order: IterationOrder<EndedIteration>,
    window: IterationWindow,
    /// Behind all that have begun.
    queue: VecDeque<QueuedInput>,
    /// Nothing more comes, or it would not be wanted.
    has_ended: bool,
    /// The decoupled step that reads this stage is at work.
    pub(super) is_busy: bool,
    /// What that step is asked next, until its actor takes it.
    pub(super) call: Option<DecoupledCall>,
}

enum QueuedInput {
    Response(StageInput),
    /// Nothing follows.
    End(Result<()>),
}

/// A response of a decoupled step: what an iteration begins with.
pub(super) struct StageInput {
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

/// An iteration that may begin: what with, and its number within the stage.
pub(super) struct BegunIteration {
    pub(super) input: StageInput,
    pub(super) number: u64,
}

/// How an iteration ended.
pub(super) struct EndedIteration {
    pub(super) outcome: IterationEnd,
    pub(super) credit: Option<Arc<Credit>>,
    /// See `iteration_window::cost`.
    pub(super) cost: u64,
}

/// What an iteration ended with.
pub(super) enum IterationEnd {
    /// A request to the decoupled step that reads the stage.
    Call(Request),
    /// A response to the client.
    Response(Response),
    /// There was no iteration any more.
    Nothing,
}

/// A request to a decoupled step: one of each stream at a time.
pub(super) struct DecoupledCall {
    pub(super) request: Request,
    /// Given back once the last of the responses was taken.
    pub(super) credit: Option<Arc<Credit>>,
    /// No iteration follows.
    pub(super) is_last: bool,
}

impl StageState {
    pub(super) fn new(limit: u64) -> StageState {
        StageState {
            order: IterationOrder::default(),
            window: IterationWindow::new(limit),
            queue: VecDeque::new(),
            has_ended: false,
            is_busy: false,
            call: None,
        }
    }

    /// Begins the one iteration that no response begins; says its number.
    pub(super) fn begin_only(&mut self) -> Option<u64> {
        self.has_ended = true;
        self.window.begin();
        self.order.begin(true)
    }

    /// A response waits for room from now on; unless nothing more is wanted.
    pub(super) fn push(&mut self, input: StageInput) {
        if !self.has_ended {
            self.has_ended = input.is_last;
            self.queue.push_back(QueuedInput::Response(input));
        }
    }

    /// No further responses will be accepted.
    pub(super) fn end(&mut self, how: Result<()>) {
        if !self.has_ended {
            self.has_ended = true;
            self.queue.push_back(QueuedInput::End(how));
        }
    }

    /// Does a response wait for room?
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.queue.front(), Some(QueuedInput::Response(_)))
    }

    /// Begins the next iteration if a response waits and there is room for it, while so many bytes
    /// are on their way to the client.
    pub(super) fn begin_next(&mut self, untaken: u64) -> Option<BegunIteration> {
        if !self.is_waiting() || !self.window.has_room(untaken) {
            return None;
        }
        let Some(QueuedInput::Response(input)) = self.queue.pop_front() else { return None };
        let number = self.order.begin(input.is_last)?;
        self.window.begin();
        Some(BegunIteration { input, number })
    }

    /// An iteration has ended and has cost up to `peak`. If it failed, those behind it are not
    /// wanted any more.
    pub(super) fn finish(&mut self, number: u64, result: Result<EndedIteration>, peak: u64) {
        if !self.order.is_wanted(number) {
            return;
        }
        match &result {
            Ok(ended) => self.window.finish(ended.cost, peak),
            Err(_) => {
                self.queue.clear();
                self.has_ended = true;
            }
        }
        self.order.finish(number, result);
    }

    /// Takes the first iteration, if it has ended, and says whether it is the last.
    pub(super) fn take_first(&mut self) -> Option<(Result<EndedIteration>, bool)> {
        if let Some((result, is_last)) = self.order.take_first() {
            if let Ok(ended) = &result {
                self.window.leave(ended.cost);
            }
            return Some((result, is_last));
        }
        if !self.order.is_empty() || self.is_waiting() {
            return None;
        }
        let Some(QueuedInput::End(how)) = self.queue.pop_front() else { return None };
        Some((
            how.map(|()| EndedIteration { outcome: IterationEnd::Nothing, credit: None, cost: 0 }),
            true,
        ))
    }

    /// Forgets all; nothing is wanted any more.
    pub(super) fn close(&mut self) {
        self.order.close();
        self.queue.clear();
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
