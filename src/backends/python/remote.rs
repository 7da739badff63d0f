//! A worker as its instance sees it: frames out, answers in, and a new worker when one dies.

mod backoff;
mod calls;
mod change;
mod checks;
mod copies;
mod deadline;
mod flight;
mod open;
mod revive;
mod stuck;
mod tidy;

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

use self::{
    calls::Calls,
    checks::Checks,
    copies::{copy_then_send, needs_copy},
    deadline::Late,
    flight::{Flight, Group, News, Told, all_failed, failed, tell},
    open::{Key, Open},
};
use super::{
    awake::Awake,
    connection::{Connection, connect},
    decode::{Answer, Cursor, Verdict, answer, answer_head},
    encode,
    process::{Launched, frame_head},
    recipe::Recipe,
};
use troupe_base::{
    backend::{Completion, Executed, Outcome, Remote},
    config::ModelConfig,
    error::{Error, Result},
    model::Health,
    request::{CallChain, Request, deadlock::BlockedInstance},
};

/// Larger tensors are copied on another thread.
const COPY_HERE: usize = 1 << 20;

/// What does not change while the instance lives.
pub(super) struct Fixed {
    pub(super) recipe: Arc<Recipe>,
    pub(super) config: Arc<ModelConfig>,
    pub(super) health: Arc<Health>,
    /// The model's version.
    pub(super) version: i64,
    /// How many executions a worker may have in work at once, if not one after the other.
    pub(super) concurrency: Option<NonZeroUsize>,
    /// The model has `is_ready`.
    pub(super) has_check: bool,
    /// Of one `execute`.
    pub(super) time_limit: Option<Duration>,
}

/// The handle of the instance. Dropping it ends the worker.
pub(super) struct Worker(Rc<RefCell<Link>>);

struct Link {
    fixed: Rc<Fixed>,
    state: State,
    in_flight: VecDeque<Flight>,
    open: Open,
    calls: Calls,
    checks: Checks,
    awake: Awake,
    /// Starts behind one whose tensors are being copied; `None` if there is none.
    behind: Option<VecDeque<Start>>,
    sequence: u32,
    /// Reused for every frame.
    frame: Vec<u8>,
    /// Nothing was started since the last look.
    is_idle: bool,
    /// Told when something is started, if there is a time limit.
    busy: Option<Rc<Notify>>,
    /// Why the worker is being ended.
    late: Option<Late>,
    /// The worker has answered something.
    is_proven: bool,
    /// Keeps the instance from being given work while it has no worker.
    held: Vec<Rc<dyn Completion>>,
}

/// What `Remote::start` was given.
type Start = (Vec<Vec<Request>>, Rc<dyn Completion>);

enum State {
    Up(Box<Connection>),
    Down {
        why: String,
        /// A worker is being started, for the first time since the last one ended.
        is_brief: bool,
    },
}

/// Takes over a worker that is ready, on the runtime of the current thread.
pub(super) fn attach(fixed: Fixed, launched: Launched) -> Result<Worker> {
    let (connection, voice) = connect(launched, fixed.recipe.pool.clone())?;
    let (open, told) = Open::new();
    let (calls, heard) = Calls::new();
    let link = Link {
        fixed: Rc::new(fixed),
        state: State::Up(Box::new(connection)),
        in_flight: VecDeque::new(),
        open,
        calls,
        checks: Checks::default(),
        awake: Awake::new(),
        behind: None,
        sequence: 0,
        frame: Vec::new(),
        is_idle: false,
        busy: None,
        late: None,
        is_proven: false,
        held: Vec::new(),
    };
    let time_limit = link.fixed.time_limit;
    let link = Rc::new(RefCell::new(link));
    if let Some(limit) = time_limit {
        let busy = Rc::new(Notify::new());
        link.borrow_mut().busy = Some(busy.clone());
        actix_rt::spawn(deadline::watch(Rc::downgrade(&link), limit, busy));
    }
    actix_rt::spawn(revive::attend(Rc::downgrade(&link), voice));
    actix_rt::spawn(open::give_credit(Rc::downgrade(&link), told));
    actix_rt::spawn(calls::reply(Rc::downgrade(&link), heard));
    actix_rt::spawn(tidy::tidy(Rc::downgrade(&link)));
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
        self.0.borrow().fixed.concurrency
    }

    fn calls_others(&self) -> bool {
        self.0.borrow().calls.have_begun()
    }

    fn has_check(&self) -> bool {
        self.0.borrow().fixed.has_check
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
    fn send(&mut self, mut groups: Vec<Vec<Request>>, done: Rc<dyn Completion>) -> News {
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
        self.awake.works(begun);
        let (left, before) = (groups.len(), connection.given);
        connection.given += left as u64;
        let open = |requests| Group { requests: Some(requests), seen: None };
        self.in_flight.push_back(Flight {
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
    fn obey(&mut self, frame: &Bytes, this: &Weak<RefCell<Link>>) -> Result<News, String> {
        let State::Up(connection) = &mut self.state else { return Ok(Vec::new()) };
        self.awake.heard(Instant::now());
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
            b'L' => connection.process.words.log(&frame[8..]),
            b'M' => {
                let answer = connection.process.words.count(&frame[8..])?;
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

    fn answered(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Told>, String> {
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
        let Answer { results, mut timing } =
            answer(cursor, &self.fixed.config, requests, &mut connection.segments)?;
        let (sequence, group) = (head.sequence, head.group);
        let key = |index: usize| (sequence, group as u32, index as u32);
        self.is_proven = true;
        let instance = &self.fixed.recipe.instance;
        let results = match results {
            Ok(verdicts) => {
                let is_later = |it: &Verdict| matches!(it, Verdict::Later);
                for (index, _) in verdicts.iter().enumerate().filter(|(_, it)| is_later(it)) {
                    self.open.detach(flight, key(index));
                }
                let open = &mut self.open;
                // After the answer is read, so that outputs may refer to inputs.
                let requests = flight.groups[group].requests.take().unwrap_or_default();
                let verdicts = verdicts.into_iter().zip(requests).enumerate();
                let outcomes = verdicts.map(|(index, (verdict, request))| match verdict {
                    Verdict::Result(result) => Outcome::Answered(result),
                    Verdict::Later => Outcome::Detached,
                    Verdict::Again => Outcome::Rescheduled(request, open.take(key(index))),
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
            self.awake.rests(begun);
        } else {
            self.awake.asked(begun);
        }
        timing.compute_output += begun.elapsed();
        Ok(Some(Told::Executed(done, Executed { group, results, timing })))
    }
}

/// Triton's words around what went wrong.
fn failure(instance: &str, text: &str) -> String {
    format!("Failed to process the request(s) for model instance '{instance}', message: {text}")
}

fn unhealthy(fixed: &Fixed, text: &str) -> String {
    let Fixed { recipe, config, .. } = fixed;
    let Recipe { instance, .. } = &**recipe;
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
        self.fixed.recipe.give_up();
    }
}
