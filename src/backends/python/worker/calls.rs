//! Calls that a model makes (BLS): asked of other models like any request, answered over its
//! socket.

use std::{cell::RefCell, num::NonZeroUsize, rc::Weak, sync::Arc, time::Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{
    call_table::{CallEvent, Calls, Copying},
    link::{WorkerLink, WorkerState},
    shm_copy::{MAX_COPY_HERE, copy, needs_copy},
};
use crate::python::{
    process::launch_spec::LaunchSpec,
    protocol::{
        decode::Cursor,
        encode,
        model_call::{ModelCall, ModelCallHead, call_head, read_model_call},
        replies::{self, CallReply, Replied},
    },
};
use troupe_base::{
    error::{Error, Result},
    model::Model,
    request::{CallChain, Context, Reply, Request},
    trace::Span,
};

/// Bytes of a call's responses that its worker has not taken yet; what comes meanwhile waits here,
/// and its maker for credit.
const CALL_WINDOW: u64 = 1 << 20;
/// Calls that one worker may have open: more are refused.
pub(super) const MAX_OPEN_CALLS: usize = 10_000;

impl WorkerLink {
    /// A model asks another. An error is the worker's, and its end.
    pub(crate) fn begin_call(
        &mut self,
        cursor: &mut Cursor<'_>,
        frame: &Bytes,
    ) -> Result<(), String> {
        let WorkerState::Up(connection) = &mut self.state else { return Ok(()) };
        connection.on_question()?;
        let head = call_head(cursor)?;
        if self.calls.open.contains_key(&head.call) {
            return Err(format!("a second call of number {}", head.call));
        }
        let flight = self.in_flight.iter().find(|it| it.sequence == head.group.0);
        let group = flight.and_then(|it| it.groups.get(head.group.1 as usize)?.requests.as_deref());
        let mut call =
            read_model_call(&head, frame, group.unwrap_or_default(), &mut connection.segments)?;
        call.span = match (call.under(), group) {
            (Some(id), _) => self.span(id),
            (None, Some([alone])) => alone.context.span.clone(),
            (None, _) => None,
        };
        // Of several the first pays: they came together, and it is not known whose call it is.
        let payer = group.and_then(<[Request]>::first).or_else(|| self.detached.requests().next());
        call.charge = payer.map(|it| it.context.charge.clone()).unwrap_or_default();
        // Whatever has no group runs beside `execute`.
        let room = self.setup.concurrency.map_or(1, NonZeroUsize::get);
        let room = if group.is_some() { room } else { usize::MAX };
        let name = self.setup.config.name.clone();
        let caller = |model: &Model| {
            let mut caller = CallChain::new(name, self.setup.version, model.name().clone());
            caller.concurrency = room;
            caller.on_behalf_of(group.unwrap_or_default())
        };
        // What is asked for one request is of no use once its client has gone.
        let asks = group.and_then(|requests| match requests {
            [alone] => Some(&alone.context),
            _ => None,
        });
        let found = self.check_open_calls().and_then(|()| self.find(&call, head.takes_many));
        let found = found.and_then(|model| {
            let caller = caller(&model);
            let request = call
                .resolve(&model, caller, asks.map(|it| &**it))
                .map_err(|it| refused(&model, &it))?;
            request.context.owner.set_first(self.calls.owner_of_calls(model.owner));
            Ok((model, request))
        });
        self.ask(&head, found);
        Ok(())
    }

    fn check_open_calls(&self) -> Result<()> {
        let open = self.calls.open.len();
        if open < MAX_OPEN_CALLS {
            return Ok(());
        }
        let name = &self.setup.config.name;
        Err(Error::unavailable(format!(
            "model '{name}' has {open} calls of other models that are not answered, at most \
             {MAX_OPEN_CALLS} are allowed for each instance"
        )))
    }

    /// The span of a request the worker has not ended.
    fn span(&self, id: u64) -> Option<Span> {
        let groups = self.in_flight.iter().flat_map(|it| &it.groups);
        let requests = groups.flat_map(|it| &it.requests).flatten().chain(self.detached.requests());
        let mut spans = requests.filter_map(|it| it.context.span.as_ref());
        spans.find(|it| it.id() == id).cloned()
    }

    fn find(&self, call: &ModelCall<'_>, takes_many: bool) -> Result<Arc<Model>> {
        let name = &call.model;
        let not_ready = |error: Error| {
            let text = "Failed for execute the inference request.";
            Error::new(error.kind(), format!("{text} Model '{name}' is not ready."))
        };
        let unknown = || Error::not_found("there are no other models");
        let lookup = self.setup.spec.lookup.as_ref().ok_or_else(unknown);
        let found = lookup.and_then(|it| it.find(name, call.version));
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

    fn ask(&mut self, head: &ModelCallHead, found: Result<(Arc<Model>, Request)>) {
        let replier = self.calls.replier(head.call, head.takes_many);
        match found {
            Ok((model, request)) => {
                self.calls.begin(head, request.context.clone(), Some(model.clone()));
                if let Err((error, reply)) = model.admit(request, Reply::new(replier)) {
                    reply.answer(Err(refused(&model, &error)));
                }
            }
            Err(error) => {
                self.calls.begin(head, Arc::default(), None);
                replier.send(CallReply::Last(Err(error)));
            }
        }
    }

    /// The worker needs no answer any more, or at least not the rest of it.
    pub(crate) fn cancel_call(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
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
    pub(crate) fn responses_taken(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
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

    fn receive_reply(&mut self, event: CallEvent) {
        let CallEvent { worker, call: number, reply, is_copied } = event;
        // The call may be of an earlier worker, or not wanted any more.
        let Some(call) = self.calls.open.get_mut(&number).filter(|_| worker == self.calls.worker)
        else {
            return;
        };
        if is_copied {
            call.copying = Copying::Done;
            call.waiting.push_front(reply);
        } else {
            call.waiting.push_back(reply);
        }
        self.send_on(number);
    }

    /// Answers a call at once; what the model still says is dropped.
    pub(crate) fn answer(&mut self, number: u64, reply: CallReply) {
        if let Some(call) = self.calls.open.get_mut(&number) {
            call.waiting.push_back(reply);
            self.send_on(number);
            self.write_replies();
        }
    }

    /// Sends the replies of a call as far as its window goes.
    fn send_on(&mut self, number: u64) {
        let WorkerState::Up(connection) = &mut self.state else { return };
        let Calls { open, frames, sender, worker, .. } = &mut self.calls;
        while let Some(call) = open.get_mut(&number) {
            if call.copying == Copying::Running || CALL_WINDOW <= call.on_the_way {
                return;
            }
            let Some(mut reply) = call.waiting.pop_front() else { return };
            if call.copying == Copying::No && is_large(&mut reply) {
                call.copying = Copying::Running;
                let spec = self.setup.spec.clone();
                let event = CallEvent { worker: *worker, call: number, reply, is_copied: true };
                let context = call.context.clone();
                return copy_then_send(sender.clone(), LargeReply { context, spec, event });
            }
            call.copying = Copying::No;
            let credit = reply.take_credit();
            let is_last = reply.is_last();
            let config = call.model.as_ref().map(|it| &*it.config);
            let replied = Replied { call: number, config, context: &call.context };
            let start = frames.len();
            let size = replies::encode_reply(frames, &replied, reply, &mut connection.segments);
            if connection.segments.has_updates() {
                // Before the reply: it may lie in a segment the worker has not seen.
                let mut updates = Vec::new();
                encode::segment_updates(&mut updates, &mut connection.segments, 0);
                frames.splice(start..start, updates);
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
        let WorkerState::Up(connection) = &mut self.state else { return };
        let frames = &mut self.calls.frames;
        if !frames.is_empty() {
            self.is_idle = false;
            connection.write(frames);
            self.spin.on_request(Instant::now());
            frames.clear();
            if MAX_COPY_HERE < frames.capacity() {
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

fn is_large(reply: &mut CallReply) -> bool {
    reply.response().is_some_and(|it| it.outputs.iter().flatten().any(needs_copy))
}

/// A reply with large tensors that are to be copied for a call.
struct LargeReply {
    context: Arc<Context>,
    spec: Arc<LaunchSpec>,
    event: CallEvent,
}

/// Copies large tensors of a reply on another thread, then sends it again.
fn copy_then_send(sender: mpsc::UnboundedSender<CallEvent>, large: LargeReply) {
    let LargeReply { context, spec, mut event } = large;
    let reaper = spec.reaper.clone();
    reaper.spawn_blocking(move || {
        if let Some(response) = event.reply.response() {
            copy(response.outputs.iter_mut().flatten(), &context, &spec);
        }
        // The instance may have gone.
        let _ = sender.send(event);
    });
}

/// Sends answers to the worker for as long as the instance lives.
pub(crate) async fn send_replies(
    link: Weak<RefCell<WorkerLink>>,
    mut events: mpsc::UnboundedReceiver<CallEvent>,
) {
    while let Some(first) = events.recv().await {
        let Some(link) = link.upgrade() else { return };
        let mut link = link.borrow_mut();
        link.receive_reply(first);
        while let Ok(next) = events.try_recv() {
            link.receive_reply(next);
        }
        link.write_replies();
    }
}
