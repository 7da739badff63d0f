//! The threaded engine: a model with a thread of its own, to which it is lent with its work.
//!
//! The model moves: it is here while nothing is executed, and on its thread while something is.
//! So executions that are known to take microseconds can run here, where two threads would take
//! longer to wake each other, and nobody has to lock anything.

use std::time::Instant;

use actix::{Actor, Addr, Arbiter, Context, Handler, Message};
use tokio::sync::oneshot;

use super::{
    engine::{Engine, EngineProgress},
    local::{DueAnswer, LocalModel},
    slot::{OfferedSlot, SlotGuard},
    work::InstanceWork,
};
use troupe_base::{
    error::{Error, Result},
    request::{Pending, Request},
};

/// The engine's side of a model with a thread of its own.
pub(super) struct Threaded {
    /// `None` while it is lent to its thread, and for ever if that has ended meanwhile.
    model: Option<Box<LocalModel>>,
    thread: Addr<ModelThread>,
    /// Everything runs on that thread: the config says so, or shapes do not say how long it takes.
    is_pinned: bool,
}

/// An open model and the thread it was opened on.
pub struct OpenedThread {
    model: Box<LocalModel>,
    thread: Addr<ModelThread>,
    /// Resolves when the thread, or the actor on it, has ended.
    ended: oneshot::Receiver<()>,
}

impl OpenedThread {
    /// The engine, and what resolves when it has ended by itself.
    ///
    /// `is_pinned`: everything is to run on the model's own thread.
    pub(super) fn attach(self, is_pinned: bool) -> (Threaded, oneshot::Receiver<()>) {
        let OpenedThread { mut model, thread, ended } = self;
        if !is_pinned {
            model.watch_shapes();
        }
        (Threaded { model: Some(model), thread, is_pinned }, ended)
    }
}

/// Executes what it is sent, on a thread of its own.
pub(super) struct ModelThread {
    /// Held for its drop.
    _alive: oneshot::Sender<()>,
}

/// Work, and the model that executes it.
#[derive(Message)]
#[rtype(result = "()")]
struct Execute {
    model: Box<LocalModel>,
    work: InstanceWork,
    guard: SlotGuard,
}

/// A model to drop where it was opened.
#[derive(Message)]
#[rtype(result = "()")]
struct Close(#[expect(dead_code, reason = "held for its drop")] Box<LocalModel>);

impl Engine for Threaded {
    fn start(&mut self, work: InstanceWork, slot: OfferedSlot<'_>) -> EngineProgress {
        if !self.thread.connected() {
            return EngineProgress::Ended(work);
        }
        let Some(mut model) = self.model.take() else { return EngineProgress::Ended(work) };
        let executions = work.executions();
        if model.finds_light(&work) {
            model.run(work, slot.begun);
            self.model = Some(model);
            return EngineProgress::Finished(Some(slot.begun.elapsed() / executions));
        }
        self.thread.do_send(Execute { model, work, guard: slot.guard(executions) });
        EngineProgress::Later
    }

    fn may_run_now(&self) -> bool {
        !self.is_pinned && self.model.as_ref().is_some_and(|model| model.runs_alone())
    }

    fn runs_now(&self, request: &Request) -> bool {
        let is_light = |it: &LocalModel| it.runs_alone() && it.finds_request_light(request);
        self.model.as_deref().is_some_and(is_light) && self.thread.connected()
    }

    fn run_now(&mut self, asked: &mut Option<Pending>, due: &mut Option<DueAnswer>) {
        if let Some(model) = &mut self.model {
            *due = model.run_alone(asked);
        }
    }

    fn take_back(&mut self, returned: Box<LocalModel>) {
        // One of an earlier engine is of no more use.
        self.model.get_or_insert(returned);
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        if let Some(model) = self.model.take() {
            self.thread.do_send(Close(model));
        }
    }
}

/// Calls `open` on a new thread, which is the model's from then on. Returns once the model is open
/// or has failed to.
pub(super) async fn spawn(
    name: &str,
    open: impl FnOnce() -> Result<LocalModel> + Send + 'static,
) -> Result<OpenedThread> {
    let (loaded, ready) = oneshot::channel();
    Arbiter::new().spawn_fn(move || {
        let opened = open();
        if opened.is_err() {
            Arbiter::current().stop();
        }
        // Nobody waits any more when the load was given up.
        let _ = loaded.send(opened.map(|model| {
            let (alive, ended) = oneshot::channel();
            let thread = ModelThread { _alive: alive }.start();
            OpenedThread { model: Box::new(model), thread, ended }
        }));
    });
    ready.await.map_err(|_| Error::internal(format!("thread of '{name}' ended while loading")))?
}

impl Actor for ModelThread {
    type Context = Context<Self>;
}

/// Its last address is gone, or it panicked: the thread is of no more use.
impl Drop for ModelThread {
    fn drop(&mut self) {
        if let Some(arbiter) = Arbiter::try_current() {
            arbiter.stop();
        }
    }
}

impl Handler<Execute> for ModelThread {
    type Result = ();

    fn handle(&mut self, execute: Execute, _: &mut Self::Context) {
        let Execute { mut model, work, guard } = execute;
        model.run(work, Instant::now());
        guard.give_back(model);
    }
}

impl Handler<Close> for ModelThread {
    type Result = ();

    fn handle(&mut self, _: Close, _: &mut Self::Context) {}
}
