//! A worker as its instance sees it: frames out, answers in, and a new worker when one dies.

use std::{
    cell::RefCell,
    collections::VecDeque,
    num::NonZeroUsize,
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use crate::python::process::launch_spec::LaunchSpec;
use crate::python::process::worker_process::Launched;
use crate::python::protocol::decode::Cursor;
use crate::python::protocol::decode::GroupAnswer;
use crate::python::protocol::decode::RequestOutcome;
use crate::python::protocol::decode::answer;
use crate::python::protocol::decode::answer_head;
use crate::python::protocol::encode;
use crate::python::protocol::frames::frame_head;
use crate::python::worker::calls::Calls;
use crate::python::worker::checks::Checks;
use crate::python::worker::connection::Connection;
use crate::python::worker::connection::connect;
use crate::python::worker::detached::DetachedRequests;
use crate::python::worker::detached::Key;
use crate::python::worker::execute_deadline::Overrun;
use crate::python::worker::in_flight::GroupEvent;
use crate::python::worker::in_flight::GroupEvents;
use crate::python::worker::in_flight::InFlightBatch;
use crate::python::worker::in_flight::InFlightGroup;
use crate::python::worker::in_flight::all_failed;
use crate::python::worker::in_flight::tell;
use crate::python::worker::shm_copy::copy_then_send;
use crate::python::worker::shm_copy::needs_copy;
use crate::python::worker::spin::AdaptiveSpin;
use crate::python::worker::{calls, detached, execute_deadline, housekeeping, restart};
use troupe_base::{
    backend::{Completion, Executed, Outcome, Remote},
    config::ModelConfig,
    error::{Error, Result},
    model::Health,
    request::{CallChain, Request, deadlock::BlockedInstance},
};

/// Larger tensors are copied on another thread.
pub(crate) const COPY_HERE: usize = 1 << 20;

/// What does not change while the instance lives.
pub(crate) struct InstanceSetup {
    pub(crate) spec: Arc<LaunchSpec>,
    pub(crate) config: Arc<ModelConfig>,
    pub(crate) health: Arc<Health>,
    /// The model's version.
    pub(crate) version: i64,
    /// How many executions a worker may have in work at once, if not one after the other.
    pub(crate) concurrency: Option<NonZeroUsize>,
    /// The model has `is_ready`.
    pub(crate) has_check: bool,
    /// Of one `execute`.
    pub(crate) time_limit: Option<Duration>,
}

/// The handle of the instance. Dropping it ends the worker.
pub(crate) struct Worker(Rc<RefCell<Link>>);

pub(crate) struct Link {
    pub(crate) setup: Rc<InstanceSetup>,
    pub(crate) state: State,
    pub(crate) in_flight: VecDeque<InFlightBatch>,
    pub(crate) open: DetachedRequests,
    pub(crate) calls: Calls,
    pub(crate) checks: Checks,
    pub(crate) spin: AdaptiveSpin,
    /// Starts behind one whose tensors are being copied; `None` if there is none.
    pub(crate) behind: Option<VecDeque<Start>>,
    pub(crate) sequence: u32,
    /// Reused for every frame.
    pub(crate) frame: Vec<u8>,
    /// Nothing was started since the last look.
    pub(crate) is_idle: bool,
    /// Told when something is started, if there is a time limit.
    pub(crate) busy: Option<Rc<Notify>>,
    /// Why the worker is being ended.
    pub(crate) late: Option<Overrun>,
    /// The worker has answered something.
    pub(crate) is_proven: bool,
    /// Keeps the instance from being given work while it has no worker.
    pub(crate) held: Vec<Rc<dyn Completion>>,
}

/// What `Remote::start` was given.
pub(crate) type Start = (Vec<Vec<Request>>, Rc<dyn Completion>);

pub(crate) enum State {
    Up(Box<Connection>),
    Down {
        why: String,
        /// A worker is being started, for the first time since the last one ended.
        is_brief: bool,
    },
}

/// Takes over a worker that is ready, on the runtime of the current thread.
pub(crate) fn attach(setup: InstanceSetup, launched: Launched) -> Result<Worker> {
    let (connection, voice) = connect(launched, setup.spec.pool.clone())?;
    let (open, told) = DetachedRequests::new();
    let (calls, heard) = Calls::new();
    let link = Link {
        setup: Rc::new(setup),
        state: State::Up(Box::new(connection)),
        in_flight: VecDeque::new(),
        open,
        calls,
        checks: Checks::default(),
        spin: AdaptiveSpin::new(),
        behind: None,
        sequence: 0,
        frame: Vec::new(),
        is_idle: false,
        busy: None,
        late: None,
        is_proven: false,
        held: Vec::new(),
    };
    let time_limit = link.setup.time_limit;
    let link = Rc::new(RefCell::new(link));
    if let Some(limit) = time_limit {
        let busy = Rc::new(Notify::new());
        link.borrow_mut().busy = Some(busy.clone());
        actix_rt::spawn(execute_deadline::watch(Rc::downgrade(&link), limit, busy));
    }
    actix_rt::spawn(restart::attend(Rc::downgrade(&link), voice));
    actix_rt::spawn(detached::give_credit(Rc::downgrade(&link), told));
    actix_rt::spawn(calls::reply(Rc::downgrade(&link), heard));
    actix_rt::spawn(housekeeping::tidy(Rc::downgrade(&link)));
    Ok(Worker(link))
}

impl Remote for Worker {
    fn start(&mut self, groups: Vec<Vec<Request>>, done: Rc<dyn Completion>) {
        let mut link = self.0.borrow_mut();
        if let Some(behind) = &mut link.behind {
            behind.push_back((groups, done));
            return;
        }
        if groups.iter().flatten().flat_map(|it| &it.inputs).flatten().any(needs_copy) {
            link.behind = Some(VecDeque::from([(groups, done)]));
            actix_rt::spawn(copy_then_send(Rc::downgrade(&self.0)));
            return;
        }
        let news = link.send(groups, done);
        drop(link);
        tell(news);
    }

    fn concurrency(&self) -> Option<NonZeroUsize> {
        self.0.borrow().setup.concurrency
    }

    fn calls_others(&self) -> bool {
        self.0.borrow().calls.have_begun()
    }

    fn has_check(&self) -> bool {
        self.0.borrow().setup.has_check
    }

    fn check(&mut self, answer: oneshot::Sender<Result<()>>) {
        self.0.borrow_mut().check(answer);
    }

    fn blocked_call(&self, min_wait: Duration) -> Option<BlockedInstance> {
        self.0.borrow().stuck(min_wait)
    }

    fn fail_call(&mut self, call: &Arc<CallChain>, error: &Error) {
        self.0.borrow_mut().refuse(call, error);
    }
}

impl Link {
    pub(crate) fn send(
        &mut self,
        mut groups: Vec<Vec<Request>>,
        done: Rc<dyn Completion>,
    ) -> GroupEvents {
        self.is_idle = false;
        let State::Up(connection) = &mut self.state else { return self.turn_away(groups, done) };
        let begun = Instant::now();
        self.sequence = self.sequence.wrapping_add(1);
        let frame = &mut self.frame;
        if let Err(error) =
            encode::execute(frame, self.sequence, &mut groups, &mut connection.segments)
        {
            self.frame = Vec::new();
            return all_failed(&groups, &done, &error);
        }
        connection.write(&self.frame);
        self.spin.on_dispatch(begun);
        let (left, before) = (groups.len(), connection.given);
        connection.given += left as u64;
        let open = |requests| InFlightGroup { requests: Some(requests), seen: None };
        self.in_flight.push_back(InFlightBatch {
            sequence: self.sequence,
            before,
            groups: groups.into_iter().map(open).collect(),
            left,
            begun,
            encode: begun.elapsed() / left.max(1) as u32,
            done,
        });
        if COPY_HERE < self.frame.capacity() {
            self.frame = Vec::new();
        }
        if let Some(busy) = &self.busy {
            busy.notify_one();
        }
        Vec::new()
    }

    /// Obeys one frame of the worker. An error is the worker's, and its end.
    pub(crate) fn obey(
        &mut self,
        frame: &Bytes,
        this: &Weak<RefCell<Link>>,
    ) -> Result<GroupEvents, String> {
        let State::Up(connection) = &mut self.state else { return Ok(Vec::new()) };
        self.spin.on_reply(Instant::now());
        let mut cursor = Cursor::new(frame);
        match frame[4] {
            b'P' => self.part(&mut cursor)?,
            b'H' => self.checked(&mut cursor)?,
            b'A' => return self.answered(&mut cursor).map(|it| it.into_iter().collect()),
            b'N' => connection.segments.adopt(cursor.u64()?, cursor.u64()?)?,
            b'D' => {
                while !cursor.is_at_end() {
                    connection.segments.drop_own(cursor.u64()?);
                }
            }
            b'L' => connection.process.events.log(&frame[8..]),
            b'M' => {
                let answer = connection.process.events.count(&frame[8..])?;
                connection.write(&answer.unwrap_or_default());
            }
            b'C' => {
                let call = cursor.u64()?;
                let key = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
                let is_cancelled = self.is_cancelled(key);
                self.reply_to(call, u64::from(is_cancelled));
            }
            b'F' => {
                while !cursor.is_at_end() {
                    connection.segments.let_go(cursor.u64()?);
                }
            }
            b'B' => self.call(&mut cursor, frame)?,
            b'K' => self.stop(&mut cursor)?,
            b'T' => self.taken(&mut cursor)?,
            b'U' => self.change(&mut cursor, this.clone())?,
            kind => return Err(format!("a frame of kind {kind}")),
        }
        Ok(Vec::new())
    }

    fn is_cancelled(&self, key: Key) -> bool {
        let (group, index) = (key.1 as usize, key.2 as usize);
        let flight = self.in_flight.iter().find(|it| it.sequence == key.0);
        match flight.and_then(|it| it.groups.get(group)?.requests.as_ref()?.get(index)) {
            Some(request) => request.context.is_stopped(),
            None => self.open.is_cancelled(key),
        }
    }

    fn reply_to(&mut self, call: u64, number: u64) {
        let State::Up(connection) = &mut self.state else { return };
        let mut reply = frame_head(b'c', 16);
        reply.extend_from_slice(&call.to_le_bytes());
        reply.extend_from_slice(&number.to_le_bytes());
        connection.write(&reply);
    }

    fn answered(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<GroupEvent>, String> {
        let begun = Instant::now();
        let State::Up(connection) = &mut self.state else { return Ok(None) };
        let head = answer_head(cursor)?;
        let unknown = || "an answer nobody waits for".to_owned();
        let place = self.in_flight.iter().position(|it| it.sequence == head.sequence);
        let place = place.ok_or_else(unknown)?;
        let flight = &mut self.in_flight[place];
        let requests = flight
            .groups
            .get(head.group)
            .and_then(|it| it.requests.as_ref())
            .ok_or_else(unknown)?;
        let GroupAnswer { results, mut timing } =
            answer(cursor, &self.setup.config, requests, &mut connection.segments)?;
        let (sequence, group) = (head.sequence, head.group);
        let key = |index: usize| (sequence, group as u32, index as u32);
        self.is_proven = true;
        let instance = &self.setup.spec.instance;
        let results = match results {
            Ok(verdicts) => {
                let is_later = |it: &RequestOutcome| matches!(it, RequestOutcome::Later);
                for (index, _) in verdicts.iter().enumerate().filter(|(_, it)| is_later(it)) {
                    self.open.detach(flight, key(index));
                }
                let open = &mut self.open;
                // After the answer is read, so that outputs may refer to inputs.
                let requests = flight.groups[group].requests.take().unwrap_or_default();
                let verdicts = verdicts.into_iter().zip(requests).enumerate();
                let outcomes = verdicts.map(|(index, (verdict, request))| match verdict {
                    RequestOutcome::Result(result) => Outcome::Answered(result),
                    RequestOutcome::Later => Outcome::Detached,
                    RequestOutcome::Again => Outcome::Rescheduled(request, open.take(key(index))),
                });
                Ok(outcomes.collect())
            }
            Err(text) => {
                let error = Error::internal(failure(instance, &text));
                self.open.fail_group(sequence, group, &error);
                flight.groups[group].requests = None;
                Err(error)
            }
        };
        flight.left -= 1;
        let done = flight.done.clone();
        timing.compute_input += flight.encode;
        if flight.left == 0 {
            self.in_flight.remove(place);
        }
        if self.in_flight.is_empty() {
            self.spin.on_idle(begun);
        } else {
            self.spin.on_request(begun);
        }
        timing.compute_output += begun.elapsed();
        Ok(Some(GroupEvent::Executed(done, Executed { group, results, timing })))
    }
}

/// Triton's words around what went wrong.
pub(crate) fn failure(instance: &str, text: &str) -> String {
    format!("Failed to process the request(s) for model instance '{instance}', message: {text}")
}

pub(crate) fn unhealthy(setup: &InstanceSetup, text: &str) -> String {
    let InstanceSetup { spec, config, .. } = setup;
    let LaunchSpec { instance, .. } = &**spec;
    let stub = format!("Stub process '{instance}' is not healthy.");
    failure(instance, &format!("{stub} Model '{}': {text}", config.name))
}

impl Drop for Link {
    fn drop(&mut self) {
        let error = Error::unavailable("the model was unloaded");
        let mut news = self.give_up(&error, u64::MAX);
        for (groups, done) in self.behind.take().into_iter().flatten() {
            news.extend(all_failed(&groups, &done, &error));
        }
        tell(news);
        self.setup.spec.give_up();
    }
}
