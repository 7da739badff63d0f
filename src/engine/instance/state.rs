//! An instance's life: up with an engine, or down until its model is open again.

use std::time::Duration;

use super::{
    engine::{Capacity, Engine, EngineProgress},
    local::{DueAnswer, LocalModel},
    open::InstanceOpener,
    panics::caught,
    slot::{OfferedSlot, Requeue, SlotGuard},
    work::InstanceWork,
};
use troupe_base::{
    backend::Remote,
    backoff::Backoff,
    error::Error,
    request::{Pending, Request},
};

/// One loaded copy of a model, on its batcher's thread. The actor beside it sees to it that it
/// comes up again after it went down.
pub(super) struct Instance {
    pub(super) opener: InstanceOpener,
    state: InstanceState,
    /// Counts engines, so that what is told of an earlier one is not taken for this one's.
    generation: u64,
    backoff: Backoff,
    /// The engine has executed something.
    is_proven: bool,
    /// How long to wait before the model is opened again.
    pub(super) pause: Duration,
    /// It has gone for good.
    is_retired: bool,
    /// Slots that are not to be given work while the instance is down.
    held: Vec<SlotGuard>,
    /// Called when the instance has gone down.
    on_down: Box<dyn Fn()>,
}

enum InstanceState {
    Up(Box<dyn Engine>),
    Down {
        /// What requests are answered with.
        error: Error,
        /// The model is being opened, for the first time since the engine ended.
        is_brief: bool,
    },
}

/// Counts what an instance has had: one of another generation knows nothing of earlier requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceGeneration {
    engine: u64,
    process: u64,
    /// False while it stays down.
    pub is_up: bool,
}

impl InstanceGeneration {
    /// Does it know nothing of what the other one was told?
    pub fn has_forgotten(&self, other: &InstanceGeneration) -> bool {
        (self.engine, self.process) != (other.engine, other.process)
    }
}

/// What became of work that was handed over.
pub(super) enum Handover {
    /// All of it is executed; what one execution took, if somebody looked.
    Finished(Option<Duration>),
    /// The slot is released when it can take more.
    Later,
}

impl Instance {
    /// An instance that is up. `on_down` is called whenever it has gone down; whoever made it then
    /// opens the model again.
    pub(super) fn new(
        opener: InstanceOpener,
        engine: Box<dyn Engine>,
        on_down: impl Fn() + 'static,
    ) -> Instance {
        Instance {
            opener,
            state: InstanceState::Up(engine),
            generation: 0,
            backoff: Backoff::default(),
            is_proven: false,
            pause: Duration::ZERO,
            is_retired: false,
            held: Vec::new(),
            on_down: Box::new(on_down),
        }
    }

    /// How much work it may be given at once, while it is up.
    pub(super) fn capacity(&self) -> Capacity {
        match &self.state {
            InstanceState::Up(engine) => engine.capacity(),
            InstanceState::Down { .. } => Capacity::default(),
        }
    }

    /// Which engine this is of all that the instance has had.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Which engine and which process of it this is.
    pub(super) fn worker_generation(&mut self) -> InstanceGeneration {
        let is_up = match &self.state {
            InstanceState::Up(_) => self.worker().is_none_or(|it| !it.stays_down()),
            InstanceState::Down { is_brief, .. } => *is_brief,
        };
        let process = self.worker().map_or(0, |it| it.generation());
        InstanceGeneration { engine: self.generation, process, is_up }
    }

    /// The process it is attached to, if it has one.
    pub(super) fn worker(&mut self) -> Option<&mut dyn Remote> {
        match &mut self.state {
            InstanceState::Up(engine) => engine.worker(),
            InstanceState::Down { .. } => None,
        }
    }

    /// Hands work over. The instance may be down afterwards.
    pub(super) fn start(&mut self, work: InstanceWork, slot: OfferedSlot<'_>) -> Handover {
        let InstanceState::Up(engine) = &mut self.state else { return self.turn_away(work, slot) };
        match caught(|| engine.start(work, slot)) {
            Ok(EngineProgress::Finished(took)) => {
                self.is_proven = true;
                Handover::Finished(took)
            }
            Ok(EngineProgress::Later) => Handover::Later,
            Ok(EngineProgress::Ended(work)) => {
                self.ended("its thread has ended");
                self.turn_away(work, slot)
            }
            Err(panic) => {
                // Its guard was dropped with the work.
                let is_released = engine.capacity().has_queue;
                self.ended(&format!("it panicked: {panic}"));
                match is_released {
                    true => Handover::Later,
                    false => self.turn_away(InstanceWork(Vec::new()), slot),
                }
            }
        }
    }

    /// Lets go of the engine for good; nothing may be in work.
    pub(super) fn retire(&mut self) {
        if std::mem::replace(&mut self.is_retired, true) {
            return;
        }
        // A worker process that is down has been counted out by its backend already.
        let is_counted = self.is_up() && self.worker().is_none_or(|worker| !worker.is_down());
        self.opener.name.health.leave(is_counted);
        self.generation += 1;
        let down = InstanceState::Down { error: self.error("it was removed"), is_brief: false };
        let last = std::mem::replace(&mut self.state, down);
        // What is left of it may panic too.
        let _ = caught(|| drop(last));
        self.opener.seat = None;
        self.held.clear();
    }

    /// Has it gone for good?
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// Has it an engine?
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, InstanceState::Up(_))
    }

    /// Is it up, and are there requests that it executes before a call of it returns?
    pub(super) fn may_run_now(&self) -> bool {
        matches!(&self.state, InstanceState::Up(engine) if engine.may_run_now())
    }

    /// Is it up, and does it execute this request before a call of it returns?
    pub(super) fn runs_now(&self, request: &Request) -> bool {
        matches!(&self.state, InstanceState::Up(engine) if engine.runs_now(request))
    }

    /// Takes and runs what is asked before this returns, if it `runs_now`, and says what is `due`.
    /// The instance may be down afterwards.
    pub(super) fn run_now(&mut self, asked: &mut Option<Pending>, due: &mut Option<DueAnswer>) {
        let InstanceState::Up(engine) = &mut self.state else { return };
        match caught(|| engine.run_now(asked, due)) {
            Ok(()) => self.is_proven = true,
            Err(panic) => self.ended(&format!("it panicked: {panic}")),
        }
    }

    /// A model comes back from its thread; one of an earlier engine is dropped.
    pub(super) fn take_back(&mut self, returned: Box<LocalModel>) {
        self.is_proven = true;
        if let InstanceState::Up(engine) = &mut self.state {
            engine.take_back(returned);
        }
    }

    /// What an instance without an engine does with work: if it will have one soon or another one
    /// has one, the work is queued anew, and this one is given nothing until it is up again.
    fn turn_away(&mut self, work: InstanceWork, slot: OfferedSlot<'_>) -> Handover {
        let InstanceState::Down { error, is_brief } = &self.state else {
            return Handover::Finished(None);
        };
        let requests = work.0.into_iter().flatten();
        if !is_brief && !self.opener.name.health.is_ready() {
            requests.for_each(|pending| pending.reply.answer(Err(error.clone())));
            return Handover::Finished(None);
        }
        requests.for_each(|pending| slot.owner.requeue(Requeue::NotStarted(pending)));
        self.held.push(slot.guard(0));
        Handover::Later
    }

    /// The engine has ended; lets go of it.
    pub(super) fn ended(&mut self, why: &str) {
        let error = self.error(why);
        tracing::error!("{error}; it is being opened again");
        self.opener.name.health.stays_down(&error.to_string());
        self.opener.name.health.down();
        self.generation += 1;
        let is_proven = std::mem::take(&mut self.is_proven);
        self.pause = self.backoff.ended(is_proven);
        let down = InstanceState::Down { error, is_brief: self.pause.is_zero() };
        let last = std::mem::replace(&mut self.state, down);
        // What is left of it may panic too.
        let _ = caught(|| drop(last));
        (self.on_down)();
    }

    /// The model could not be opened again.
    pub(super) fn stays_down(&mut self, why: &Error) {
        self.pause = self.backoff.refused();
        let pause = self.pause.as_millis();
        let error = self.error(&format!("{why}; next attempt within {pause} ms"));
        tracing::error!("{error}");
        self.opener.name.health.stays_down(&error.to_string());
        self.state = InstanceState::Down { error, is_brief: false };
    }

    /// The model is open again.
    pub(super) fn up(&mut self, engine: Box<dyn Engine>) {
        self.state = InstanceState::Up(engine);
        self.opener.name.health.up();
        let (name, model) = (&self.opener.name.name, &self.opener.config.name);
        tracing::info!("instance '{name}' of model '{model}' is up again");
        self.held.clear();
    }

    /// Requests do not wait for an instance that stays down if no other one is up: they fail.
    pub(super) fn let_fail(&mut self) {
        if !self.opener.name.health.is_ready() {
            self.held.clear();
        }
    }

    fn error(&self, why: &str) -> Error {
        let (name, model) = (&self.opener.name.name, &self.opener.config.name);
        Error::crashed(format!("instance '{name}' of model '{model}' has ended: {why}"))
    }
}
