//! The threaded engine: a model with a thread of its own, to which it is lent with its work.
//!
//! The model moves: it is here while nothing is executed, and on its thread while something is.
//! So executions that are known to take microseconds can run here, where two threads would take
//! longer to wake each other, and nobody has to lock anything.

use std::time::{Duration, Instant};

use actix::{Actor, Addr, Arbiter, Context, Handler, Message};
use tokio::sync::oneshot;

use super::{
    engine::{Engine, EngineProgress},
    local::LocalModel,
    slot::{OfferedSlot, ReturnedModel, SlotGuard},
    work::InstanceWork,
};
use troupe_base::error::{Error, Result};

/// An execution this short costs less than two threads waking each other.
const MAX_LIGHT_EXECUTION: Duration = Duration::from_micros(30);
/// No execution counts for more: one that was interrupted says little of the next.
const MAX_COUNTED_EXECUTION: Duration = Duration::from_micros(120);
/// Bytes of input of light work: with more it may take longer than the last executions did.
const MAX_LIGHT_BYTES: usize = 64 << 10;

/// The engine's side of a model with a thread of its own.
pub(super) struct Threaded {
    /// `None` while it is lent to its thread, and for ever if that has ended meanwhile.
    model: Option<Box<LocalModel>>,
    thread: Addr<ModelThread>,
    /// `None` if the config says where it is to run, or nothing says how long it takes.
    lightness: Option<Lightness>,
    /// Bytes of the work it was last lent with.
    lent_for: usize,
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
        let OpenedThread { model, thread, ended } = self;
        let lightness = (!is_pinned).then(Lightness::unknown);
        (Threaded { model: Some(model), thread, lightness, lent_for: 0 }, ended)
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

impl Threaded {
    fn is_light(&self, bytes: usize) -> bool {
        self.lightness.as_ref().is_some_and(|lightness| lightness.covers(bytes))
    }

    fn count(&mut self, bytes: usize, execution: Duration) {
        if let Some(lightness) = &mut self.lightness {
            lightness.add(bytes, execution);
        }
    }
}

impl Engine for Threaded {
    fn start(&mut self, work: InstanceWork, slot: OfferedSlot<'_>) -> EngineProgress {
        if !self.thread.connected() {
            return EngineProgress::Ended(work);
        }
        let Some(mut model) = self.model.take() else { return EngineProgress::Ended(work) };
        let (executions, bytes) = (work.executions(), work.bytes());
        if self.is_light(bytes) {
            model.run(work, slot.begun);
            self.model = Some(model);
            let took = slot.begun.elapsed() / executions;
            self.count(bytes, took);
            return EngineProgress::Finished(Some(took));
        }
        self.lent_for = bytes;
        self.thread.do_send(Execute { model, work, guard: slot.guard(executions) });
        EngineProgress::Later
    }

    fn take_back(&mut self, returned: ReturnedModel) {
        self.count(self.lent_for, returned.execution);
        // One of an earlier engine is of no more use.
        self.model.get_or_insert(returned.model);
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
        let (begun, executions) = (Instant::now(), work.executions());
        model.run(work, begun);
        guard.give_back(model, begun.elapsed() / executions);
    }
}

impl Handler<Close> for ModelThread {
    type Result = ();

    fn handle(&mut self, _: Close, _: &mut Self::Context) {}
}

/// Moving averages of a model's executions: are they short enough to run in the batcher's thread?
///
/// One for the sizes of inputs from each power of two to the next: what was light with a few bytes
/// says nothing of what comes with many.
#[derive(Debug)]
struct Lightness {
    averages: [Duration; SIZE_CLASSES],
}

/// The last one is of `MAX_LIGHT_BYTES`.
const SIZE_CLASSES: usize = MAX_LIGHT_BYTES.ilog2() as usize + 1;

impl Lightness {
    /// Of a model that has to show that it is light.
    fn unknown() -> Lightness {
        Lightness { averages: [MAX_COUNTED_EXECUTION; SIZE_CLASSES] }
    }

    fn class(bytes: usize) -> usize {
        bytes.max(1).ilog2() as usize
    }

    fn add(&mut self, bytes: usize, execution: Duration) {
        if let Some(average) = self.averages.get_mut(Lightness::class(bytes)) {
            *average = (*average * 7 + execution.min(MAX_COUNTED_EXECUTION)) / 8;
        }
    }

    /// Will this work most likely not keep others waiting?
    fn covers(&self, bytes: usize) -> bool {
        let average = self.averages.get(Lightness::class(bytes));
        bytes <= MAX_LIGHT_BYTES && average.is_some_and(|it| *it < MAX_LIGHT_EXECUTION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_light_once_it_was_for_a_while_and_until_it_is_not() {
        let mut lightness = Lightness::unknown();
        let light = |lightness: &Lightness| lightness.covers(100);
        lightness.add(100, Duration::from_micros(5));
        assert!(!light(&lightness));
        (0..30).for_each(|_| lightness.add(100, Duration::from_micros(5)));
        assert!(light(&lightness));
        // Once may be an accident, and twice is none.
        lightness.add(100, Duration::from_millis(5));
        assert!(light(&lightness));
        lightness.add(100, Duration::from_millis(5));
        assert!(!light(&lightness));
    }

    #[test]
    fn what_was_light_with_few_bytes_is_not_with_many() {
        let mut lightness = Lightness::unknown();
        for _ in 0..30 {
            lightness.add(100, Duration::from_micros(5));
            lightness.add(MAX_LIGHT_BYTES, Duration::from_micros(5));
            lightness.add(usize::MAX, Duration::from_micros(5));
        }
        let bytes = [100, 64, 127, 0, 63, 128, MAX_LIGHT_BYTES, MAX_LIGHT_BYTES + 1, usize::MAX];
        let expected = [true, true, true, false, false, false, true, false, false];
        assert_eq!(bytes.map(|it| lightness.covers(it)), expected);
    }
}
