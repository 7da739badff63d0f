//! The calls of other models that one worker has in flight.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use tokio::sync::mpsc;

use crate::python::protocol::{model_call::ModelCallHead, replies::CallReply};
use troupe_base::{
    error::Result,
    model::Model,
    request::{Answer, CallChain, Context, Credit, Part, Response},
    statistics::Timing,
    tensor::Owner,
};

/// Called models that are remembered: more than most models call.
const MAX_OWNERS: usize = 1024;

/// Calls of one worker that have not ended.
pub(crate) struct Calls {
    /// By the worker's number.
    pub(super) open: HashMap<u64, Call>,
    /// A worker that follows another counts from the beginning.
    pub(super) worker: u32,
    pub(super) sender: mpsc::UnboundedSender<CallEvent>,
    /// Replies to be written together.
    pub(super) frames: Vec<u8>,
    /// Calls of the repository that are not answered.
    pub(super) of_repository: usize,
    /// Of the shared memory of these calls, by the owner that the called model is.
    owners: HashMap<Owner, Owner>,
}

pub(super) struct Call {
    pub(super) context: Arc<Context>,
    /// Kept running until the end; `None` if there is none.
    pub(super) model: Option<Arc<Model>>,
    /// Replies not sent on yet.
    pub(super) waiting: VecDeque<CallReply>,
    pub(super) copying: Copying,
    /// Sent and not taken by the worker: bytes, and what lets the maker go on.
    pub(super) sent: VecDeque<(u64, Option<Arc<Credit>>)>,
    pub(super) on_the_way: u64,
    since: Instant,
    /// The worker's main thread does nothing else until it is answered.
    blocks: bool,
}

/// Tensors too large to be copied on this thread.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Copying {
    No,
    Running,
    /// The first of those that wait has been copied as far as there was memory.
    Done,
}

/// Something for a call, from any thread.
pub(crate) struct CallEvent {
    pub(super) worker: u32,
    pub(super) call: u64,
    pub(super) reply: CallReply,
    pub(super) is_copied: bool,
}

/// Waits for the answer to a call.
pub(super) struct CallReplier {
    pub(super) worker: u32,
    pub(super) call: u64,
    takes_many: bool,
    pub(super) sender: mpsc::UnboundedSender<CallEvent>,
}

impl CallReplier {
    pub(super) fn send(&self, reply: CallReply) {
        let (worker, call) = (self.worker, self.call);
        // The instance may have gone; then nobody misses the answer.
        let _ = self.sender.send(CallEvent { worker, call, reply, is_copied: false });
    }
}

impl Answer for CallReplier {
    fn answer(self: Box<Self>, result: Result<Response>, _: Instant) {
        self.send(CallReply::Last(result));
    }

    fn takes_many(&self) -> bool {
        self.takes_many
    }

    fn part(&mut self, part: Part, _: Instant) {
        self.send(CallReply::Part(part));
    }

    fn end(self: Box<Self>, _: Timing, _: Instant) {
        self.send(CallReply::End);
    }
}

impl Calls {
    /// The other end hears what models answer.
    pub(crate) fn new() -> (Calls, mpsc::UnboundedReceiver<CallEvent>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (open, owners) = Default::default();
        let calls = Calls { open, worker: 0, sender, frames: Vec::new(), of_repository: 0, owners };
        (calls, receiver)
    }

    /// Who owns the shared memory of calls of the model that is `called`: what others send to that
    /// model, or to this one, is none of theirs.
    pub(super) fn owner_of_calls(&mut self, called: Owner) -> Owner {
        if MAX_OWNERS <= self.owners.len() {
            // Most of them were unloaded.
            self.owners.clear();
        }
        *self.owners.entry(called).or_insert_with(Owner::unique)
    }

    /// The worker has gone, and what it asked for is of no use any more.
    pub(crate) fn end(&mut self) {
        self.worker = self.worker.wrapping_add(1);
        self.frames.clear();
        self.of_repository = 0;
        for (_, call) in self.open.drain() {
            call.context.cancel();
        }
    }

    /// The call that the worker's main thread waits for, and since when.
    pub(crate) fn blocking(&self) -> Option<(Arc<CallChain>, Instant)> {
        let waits = |it: &&Call| it.blocks && it.waiting.is_empty() && it.copying == Copying::No;
        let call = self.open.values().find(waits)?;
        Some((call.context.call_chain.clone()?, call.since))
    }

    /// The number of a call and what it is about.
    pub(crate) fn made_as(
        &self,
        caller: &Arc<CallChain>,
    ) -> Option<(u64, Arc<Context>, Option<Arc<Model>>)> {
        let is_it =
            |it: &Call| it.context.call_chain.as_ref().is_some_and(|it| Arc::ptr_eq(it, caller));
        let (number, call) = self.open.iter().find(|(_, it)| is_it(it))?;
        Some((*number, call.context.clone(), call.model.clone()))
    }

    /// A call begins; there is no model if it could not be found.
    pub(super) fn begin(
        &mut self,
        head: &ModelCallHead,
        context: Arc<Context>,
        model: Option<Arc<Model>>,
    ) {
        let call = Call {
            context,
            model,
            waiting: VecDeque::new(),
            copying: Copying::No,
            sent: VecDeque::new(),
            on_the_way: 0,
            since: Instant::now(),
            blocks: head.blocks,
        };
        self.open.insert(head.call, call);
    }

    /// Was there ever a call?
    pub(crate) fn have_begun(&self) -> bool {
        0 < self.open.capacity()
    }

    /// Which worker's calls these are.
    pub(crate) fn worker(&self) -> u32 {
        self.worker
    }

    /// Hears what the model answers to a call.
    pub(super) fn replier(&self, call: u64, takes_many: bool) -> CallReplier {
        CallReplier { worker: self.worker, call, takes_many, sender: self.sender.clone() }
    }
}
