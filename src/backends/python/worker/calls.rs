//! Calls that a model makes: asked of other models like any request, answered over the worker's socket.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    num::NonZeroUsize,
    rc::Weak,
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::python::process::launch_spec::LaunchSpec;
use crate::python::process::reaper::reaper;
use crate::python::protocol::decode::Cursor;
use crate::python::protocol::encode;
use crate::python::protocol::model_call::CallHead;
use crate::python::protocol::model_call::ModelCall;
use crate::python::protocol::model_call::asked;
use crate::python::protocol::model_call::call_head;
use crate::python::protocol::replies;
use crate::python::protocol::replies::CallReply;
use crate::python::worker::link::COPY_HERE;
use crate::python::worker::link::Link;
use crate::python::worker::link::State;
use crate::python::worker::shm_copy::copy;
use crate::python::worker::shm_copy::needs_copy;
use troupe_base::{
    error::{Error, Result},
    model::Model,
    request::{Answer, CallChain, Context, Credit, Part, Reply, Request, Response},
    statistics::Timing,
    trace::Span,
};

/// Bytes of a call's responses that its worker has not taken yet; what comes meanwhile waits here,
/// and its maker for credit.
const WINDOW: u64 = 1 << 20;

/// Calls of one worker that have not ended.
pub(crate) struct Calls {
    /// By the worker's number.
    open: HashMap<u64, Call>,
    /// A worker that follows another counts from the beginning.
    worker: u32,
    heard: mpsc::UnboundedSender<CallEvent>,
    /// Replies to be written together.
    frames: Vec<u8>,
}

struct Call {
    context: Arc<Context>,
    /// Kept running until the end; `None` if there is none.
    model: Option<Arc<Model>>,
    /// What was said and not sent on.
    waiting: VecDeque<CallReply>,
    copying: Copying,
    /// Sent and not taken by the worker: bytes, and what lets the maker go on.
    sent: VecDeque<(u64, Option<Arc<Credit>>)>,
    on_the_way: u64,
    since: Instant,
    /// The worker's main thread does nothing else until it is answered.
    blocks: bool,
}

/// Tensors too large to be copied on this thread.
#[derive(Clone, Copy, PartialEq)]
enum Copying {
    No,
    Running,
    /// The first of those that wait has been copied as far as there was memory.
    Done,
}

/// Something for a call, from any thread.
pub(crate) struct CallEvent {
    worker: u32,
    call: u64,
    said: CallReply,
    is_copied: bool,
}

/// Waits for the answer to a call.
struct CallReplier {
    worker: u32,
    call: u64,
    takes_many: bool,
    heard: mpsc::UnboundedSender<CallEvent>,
}

impl CallReplier {
    fn tell(&self, said: CallReply) {
        let (worker, call) = (self.worker, self.call);
        // The instance may have gone; then nobody misses the answer.
        let _ = self.heard.send(CallEvent { worker, call, said, is_copied: false });
    }
}

impl Answer for CallReplier {
    fn answer(self: Box<Self>, result: Result<Response>, _: Instant) {
        self.tell(CallReply::Last(result));
    }

    fn takes_many(&self) -> bool {
        self.takes_many
    }

    fn part(&mut self, part: Part, _: Instant) {
        self.tell(CallReply::Part(part));
    }

    fn end(self: Box<Self>, _: Timing, _: Instant) {
        self.tell(CallReply::End);
    }
}

impl Calls {
    /// The other end hears what models answer.
    pub(crate) fn new() -> (Calls, mpsc::UnboundedReceiver<CallEvent>) {
        let (heard, told) = mpsc::unbounded_channel();
        (Calls { open: HashMap::new(), worker: 0, heard, frames: Vec::new() }, told)
    }

    /// The worker has gone, and what it asked for is of no use any more.
    pub(crate) fn end(&mut self) {
        self.worker = self.worker.wrapping_add(1);
        self.frames.clear();
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

    fn begin(&mut self, head: &CallHead, call: (Arc<Context>, Option<Arc<Model>>)) {
        let (context, model) = call;
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

    fn asking(&self, call: u64, takes_many: bool) -> CallReplier {
        CallReplier { worker: self.worker, call, takes_many, heard: self.heard.clone() }
    }
}

impl Link {
    /// A model asks another. An error is the worker's, and its end.
    pub(crate) fn call(&mut self, cursor: &mut Cursor<'_>, frame: &Bytes) -> Result<(), String> {
        let State::Up(connection) = &mut self.state else { return Ok(()) };
        let head = call_head(cursor)?;
        if self.calls.open.contains_key(&head.call) {
            return Err(format!("a second call of number {}", head.call));
        }
        let flight = self.in_flight.iter().find(|it| it.sequence == head.group.0);
        let group = flight.and_then(|it| it.groups.get(head.group.1 as usize)?.requests.as_deref());
        let mut asked = asked(&head, frame, group.unwrap_or_default(), &mut connection.segments)?;
        asked.span = match (asked.under(), group) {
            (Some(id), _) => self.span(id),
            (None, Some([alone])) => alone.context.span.clone(),
            (None, _) => None,
        };
        // Whatever has no group runs beside `execute`.
        let room = self.setup.concurrency.map_or(1, NonZeroUsize::get);
        let room = if group.is_some() { room } else { usize::MAX };
        let name = self.setup.config.name.clone();
        let caller = |model: &Model| {
            let mut caller = CallChain::new(name, self.setup.version, model.name().clone());
            caller.concurrency = room;
            caller.on_behalf_of(group.unwrap_or_default())
        };
        let found = self.find(&asked, head.takes_many);
        let found = found.and_then(|model| {
            let caller = caller(&model);
            let request = asked.resolve(&model, caller).map_err(|it| refused(&model, &it))?;
            Ok((model, request))
        });
        self.ask(&head, found);
        Ok(())
    }

    /// The span of a request the worker has not ended.
    fn span(&self, id: u64) -> Option<Span> {
        let groups = self.in_flight.iter().flat_map(|it| &it.groups);
        let requests = groups.flat_map(|it| &it.requests).flatten().chain(self.open.requests());
        let mut spans = requests.filter_map(|it| it.context.span.as_ref());
        spans.find(|it| it.id() == id).cloned()
    }

    fn find(&self, asked: &ModelCall<'_>, takes_many: bool) -> Result<Arc<Model>> {
        let name = &asked.model;
        let not_ready = |error: Error| {
            let text = "Failed for execute the inference request.";
            Error::new(error.kind(), format!("{text} Model '{name}' is not ready."))
        };
        let unknown = || Error::not_found("there are no other models");
        let lookup = self.setup.spec.lookup.as_ref().ok_or_else(unknown);
        let found = lookup.and_then(|it| it.find(name, asked.version));
        let model = found.map_err(not_ready)?;
        if !model.is_ready() {
            return Err(not_ready(Error::unavailable("")));
        }
        if model.config.decoupled && !takes_many {
            return Err(Error::unsupported(format!(
                "Model {name} is using the decoupled. The current BLS request call doesn't support \
                 models using the decoupled transaction policy. Please use 'decoupled=True' \
                 argument to the 'exec' or 'async_exec' calls for decoupled models.'"
            )));
        }
        Ok(model)
    }

    fn ask(&mut self, head: &CallHead, found: Result<(Arc<Model>, Request)>) {
        let asking = self.calls.asking(head.call, head.takes_many);
        match found {
            Ok((model, request)) => {
                self.calls.begin(head, (request.context.clone(), Some(model.clone())));
                if let Err((error, reply)) = model.admit(request, Reply::new(asking)) {
                    reply.answer(Err(refused(&model, &error)));
                }
            }
            Err(error) => {
                self.calls.begin(head, (Arc::default(), None));
                asking.tell(CallReply::Last(Err(error)));
            }
        }
    }

    /// The worker needs no answer any more, or at least not the rest of it.
    pub(crate) fn stop(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
        let (number, is_forgotten) = (cursor.u64()?, cursor.u64()? != 0);
        // It may have ended meanwhile.
        let Some(call) = self.calls.open.get(&number) else { return Ok(()) };
        call.context.cancel();
        if is_forgotten {
            self.calls.open.remove(&number);
        }
        Ok(())
    }

    /// The worker has taken so many more responses of a call.
    pub(crate) fn taken(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
        let (number, parts) = (cursor.u64()?, cursor.u64()?);
        let Some(call) = self.calls.open.get_mut(&number) else { return Ok(()) };
        for _ in 0..parts {
            let (size, credit) = call.sent.pop_front().ok_or("more was taken than sent")?;
            call.on_the_way -= size;
            drop(credit);
        }
        self.send_on(number);
        self.write_replies();
        Ok(())
    }

    fn hear(&mut self, heard: CallEvent) {
        let CallEvent { worker, call: number, said, is_copied } = heard;
        // The call may be of an earlier worker, or not wanted any more.
        let Some(call) = self.calls.open.get_mut(&number).filter(|_| worker == self.calls.worker)
        else {
            return;
        };
        if is_copied {
            call.copying = Copying::Done;
            call.waiting.push_front(said);
        } else {
            call.waiting.push_back(said);
        }
        self.send_on(number);
    }

    /// Answers a call at once; what the model still says is dropped.
    pub(crate) fn answer(&mut self, number: u64, said: CallReply) {
        if let Some(call) = self.calls.open.get_mut(&number) {
            call.waiting.push_back(said);
            self.send_on(number);
            self.write_replies();
        }
    }

    /// Sends what was said in a call as far as its window goes.
    fn send_on(&mut self, number: u64) {
        let State::Up(connection) = &mut self.state else { return };
        let Calls { open, frames, heard, worker } = &mut self.calls;
        while let Some(call) = open.get_mut(&number) {
            if call.copying == Copying::Running || WINDOW <= call.on_the_way {
                return;
            }
            let Some(mut said) = call.waiting.pop_front() else { return };
            if call.copying == Copying::No && is_large(&mut said) {
                call.copying = Copying::Running;
                let spec = self.setup.spec.clone();
                return copy_then_hear(heard.clone(), spec, (*worker, number), said);
            }
            call.copying = Copying::No;
            let credit = said.take_credit();
            let is_last = said.is_last();
            let config = call.model.as_ref().map(|it| &*it.config);
            let start = frames.len();
            let size = replies::reply(frames, number, (said, config), &mut connection.segments);
            if connection.segments.has_news() {
                // Before the reply: it may lie in a segment the worker has not seen.
                let mut news = Vec::new();
                encode::news(&mut news, &mut connection.segments, 0);
                frames.splice(start..start, news);
            }
            if is_last {
                open.remove(&number);
                return;
            }
            call.on_the_way += size;
            call.sent.push_back((size, credit));
        }
    }

    fn write_replies(&mut self) {
        let State::Up(connection) = &mut self.state else { return };
        let frames = &mut self.calls.frames;
        if !frames.is_empty() {
            self.is_idle = false;
            connection.write(frames);
            self.spin.on_request(Instant::now());
            frames.clear();
            if COPY_HERE < frames.capacity() {
                *frames = Vec::new();
            }
        }
    }
}

/// Triton's words for a request that never reached its model.
pub(crate) fn refused(model: &Model, error: &Error) -> Error {
    let name = model.name();
    Error::new(error.kind(), format!("Model {name} - Error when running inference: {error}"))
}

fn is_large(said: &mut CallReply) -> bool {
    said.response().is_some_and(|it| it.outputs.iter().flatten().any(needs_copy))
}

fn copy_then_hear(
    heard: mpsc::UnboundedSender<CallEvent>,
    spec: Arc<LaunchSpec>,
    (worker, call): (u32, u64),
    mut said: CallReply,
) {
    reaper().spawn_blocking(move || {
        if let Some(response) = said.response() {
            copy(response.outputs.iter_mut().flatten(), &spec);
        }
        // The instance may have gone.
        let _ = heard.send(CallEvent { worker, call, said, is_copied: true });
    });
}

/// Sends answers to the worker for as long as the instance lives.
pub(crate) async fn reply(link: Weak<RefCell<Link>>, mut told: mpsc::UnboundedReceiver<CallEvent>) {
    while let Some(first) = told.recv().await {
        let Some(link) = link.upgrade() else { return };
        let mut link = link.borrow_mut();
        link.hear(first);
        while let Ok(next) = told.try_recv() {
            link.hear(next);
        }
        link.write_replies();
    }
}
