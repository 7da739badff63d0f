//! A worker as its instance sees it: the handle, and the tasks that serve the worker.

use std::{
    cell::RefCell,
    collections::VecDeque,
    num::NonZeroUsize,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Notify, oneshot};

use super::{
    call_table::Calls,
    calls,
    checks::ReadyChecks,
    connection::connect,
    detached::DetachedRequests,
    execute_deadline,
    give_back::GiveBack,
    housekeeping,
    in_flight::deliver,
    link::{InstanceSetup, Start, WorkerLink, WorkerState},
    responses, restart,
    shm_copy::needs_copy,
    spin::AdaptiveSpin,
    start_queue::copy_then_send,
};
use crate::python::process::{launch::Launched, stopped::StoppedLooks};
use troupe_base::{
    backend::{Completion, Remote},
    error::{Error, Result},
    request::{CallChain, Request, deadlock::BlockedInstance},
};

/// The handle of the instance. Dropping it ends the worker.
pub(crate) struct RemoteWorker(Rc<RefCell<WorkerLink>>);

/// Takes over a worker that is ready, on the runtime of the current thread.
pub(crate) fn attach(setup: InstanceSetup, launched: Launched) -> Result<RemoteWorker> {
    let (connection, source) = connect(launched, setup.spec.pool.clone())?;
    let (detached, credit) = DetachedRequests::new();
    let (calls, replies) = Calls::new();
    let spin = AdaptiveSpin::new(setup.spin.clone());
    let link = WorkerLink {
        setup: Rc::new(setup),
        state: WorkerState::Up(Box::new(connection)),
        in_flight: VecDeque::new(),
        detached,
        calls,
        checks: ReadyChecks::default(),
        spin,
        waiting: None,
        sequence: 0,
        generation: 0,
        frame: Vec::new(),
        is_idle: false,
        busy: None,
        seen_begun: None,
        is_behind: false,
        stopped_looks: StoppedLooks::default(),
        overrun: None,
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
    actix_rt::spawn(restart::attend(Rc::downgrade(&link), source));
    actix_rt::spawn(responses::give_credit(Rc::downgrade(&link), credit));
    actix_rt::spawn(calls::send_replies(Rc::downgrade(&link), replies));
    actix_rt::spawn(housekeeping::sweep(Rc::downgrade(&link)));
    Ok(RemoteWorker(link))
}

impl Remote for RemoteWorker {
    fn start(&mut self, groups: Vec<Vec<Request>>, done: Rc<dyn Completion>) {
        let mut link = self.0.borrow_mut();
        let generation = link.generation;
        if let Some(waiting) = &mut link.waiting {
            waiting.push_back(Start { groups, generation, done });
            return;
        }
        if groups.iter().flatten().flat_map(|it| &it.inputs).flatten().any(needs_copy) {
            link.waiting = Some(VecDeque::from([Start { groups, generation, done }]));
            actix_rt::spawn(copy_then_send(Rc::downgrade(&self.0)));
            return;
        }
        let events = link.send(groups, done);
        drop(link);
        deliver(events);
    }

    fn concurrency(&self) -> Option<NonZeroUsize> {
        self.0.borrow().setup.concurrency
    }

    fn generation(&self) -> u64 {
        self.0.borrow().generation
    }

    fn is_quiet(&self) -> bool {
        let link = self.0.borrow();
        link.in_flight.is_empty() && link.detached.requests().next().is_none()
    }

    fn stays_down(&self) -> bool {
        matches!(self.0.borrow().state, WorkerState::Down { is_brief: false, .. })
    }

    fn is_down(&self) -> bool {
        matches!(self.0.borrow().state, WorkerState::Down { .. })
    }

    fn let_go(&mut self) -> Vec<Rc<dyn Completion>> {
        let mut link = self.0.borrow_mut();
        match link.state {
            WorkerState::Down { .. } => link.take_more(),
            WorkerState::Up(_) => Vec::new(),
        }
    }

    fn calls_others(&self) -> bool {
        self.0.borrow().calls.have_begun()
    }

    fn give_back(&mut self) -> bool {
        let GiveBack { events, may_have_more } = self.0.borrow_mut().give_back(Instant::now());
        deliver(events);
        may_have_more
    }

    fn is_behind(&self) -> bool {
        self.0.borrow().is_behind
    }

    fn has_check(&self) -> bool {
        self.0.borrow().setup.has_check
    }

    fn check(&mut self, answer: oneshot::Sender<Result<()>>) {
        self.0.borrow_mut().check(answer);
    }

    fn blocked_call(&self, min_wait: Duration) -> Option<BlockedInstance> {
        self.0.borrow().blocked_call(min_wait)
    }

    fn fail_call(&mut self, call: &Arc<CallChain>, error: &Error) {
        self.0.borrow_mut().fail_call(call, error);
    }
}
