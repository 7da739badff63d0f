//! Workers of several batchers: what waits in front of them, and what they give back.

use std::{
    cell::RefCell,
    collections::{BTreeSet, VecDeque},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_rt::{Arbiter, ArbiterHandle, System};
use parking_lot::Mutex;
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

use super::{Answer, Mailbox, ask_on, config, setup, start};
use crate::engines::Engines;
use troupe_base::{
    backend::{
        Backend, Completion, Executed, InstanceName, OpenRemote, OpenedRemote, Outcome, Remote,
    },
    error::Result,
    request::{Request, Response},
    statistics::Timing,
};

/// Requests from this number on are held until they are let through.
const HELD: u8 = 100;

/// What the test and all workers of its model share.
struct Play {
    let_through: watch::Sender<BTreeSet<u8>>,
    /// Requests that a worker was handed, and those that it has begun.
    handed: Mutex<Vec<u8>>,
    begun: Mutex<BTreeSet<u8>>,
    calls_others: AtomicBool,
    is_behind: AtomicBool,
}

struct OpensWorkers(Arc<Play>);

/// One execution of a worker.
struct Job {
    done: Rc<dyn Completion>,
    group: usize,
    requests: Vec<Request>,
}

/// Runs one job after the other.
struct Worker {
    play: Arc<Play>,
    jobs: Rc<RefCell<Jobs>>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    is_running: bool,
}

impl OpenRemote for OpensWorkers {
    fn open(&self, _: &InstanceName) -> Result<OpenedRemote> {
        let play = self.0.clone();
        let start = move || {
            let worker = Worker { play, jobs: Rc::default() };
            Ok(Box::new(worker) as Box<dyn Remote>)
        };
        Ok(OpenedRemote { start: Box::new(start), concurrency: None })
    }
}

impl Remote for Worker {
    fn start(&mut self, groups: Vec<Vec<Request>>, done: Rc<dyn Completion>) {
        self.play.handed.lock().extend(groups.iter().map(|it| number(it)));
        let job = |(group, requests)| Job { done: done.clone(), group, requests };
        self.jobs.borrow_mut().waiting.extend(groups.into_iter().enumerate().map(job));
        run(&self.play, &self.jobs);
    }

    fn calls_others(&self) -> bool {
        self.play.calls_others.load(Ordering::SeqCst)
    }

    fn is_behind(&self) -> bool {
        self.play.is_behind.load(Ordering::SeqCst)
    }

    fn give_back(&mut self) -> bool {
        let waiting = std::mem::take(&mut self.jobs.borrow_mut().waiting);
        waiting.into_iter().for_each(|job| job.done.not_started(job.group, job.requests));
        false
    }
}

fn number(requests: &[Request]) -> u8 {
    requests[0].inputs[0].as_ref().unwrap().data()[0]
}

/// Runs what waits, until one is held.
fn run(play: &Arc<Play>, jobs: &Rc<RefCell<Jobs>>) {
    loop {
        let mut all = jobs.borrow_mut();
        if all.is_running {
            return;
        }
        let Some(job) = all.waiting.pop_front() else { return };
        let number = number(&job.requests);
        play.begun.lock().insert(number);
        if number < HELD {
            drop(all);
            job.end();
            continue;
        }
        all.is_running = true;
        let (play, jobs) = (play.clone(), jobs.clone());
        actix_rt::spawn(async move {
            let mut let_through = play.let_through.subscribe();
            let_through.wait_for(|it| it.contains(&number)).await.unwrap();
            job.end();
            jobs.borrow_mut().is_running = false;
            run(&play, &jobs);
        });
        return;
    }
}

impl Job {
    fn end(self) {
        let answer = |_: &Request| Outcome::Answered(Ok(Response::default()));
        let results = Ok(self.requests.iter().map(answer).collect());
        let timing = Timing::default();
        self.done.executed(Executed { group: self.group, results, timing });
    }
}

/// A model of two workers, each with a batcher on a thread of its own.
struct Bed {
    play: Arc<Play>,
    threads: Vec<ArbiterHandle>,
    mailbox: Arc<Mailbox>,
}

impl Bed {
    /// Both workers are known to be quick, and each is busy with a request that is held.
    async fn with_busy_workers() -> (Bed, Vec<Answer>) {
        let threads: Vec<ArbiterHandle> = (0..2).map(|_| Arbiter::new().handle()).collect();
        let text = "name: 'm' backend: 'python' instance_group { count: 2 } \
                    input { name: 'x' data_type: TYPE_UINT8 dims: 1 }";
        let play = Arc::new(Play {
            let_through: watch::Sender::new(BTreeSet::new()),
            handed: Mutex::default(),
            begun: Mutex::default(),
            calls_others: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
        });
        let backend = Backend::Remote(Arc::new(OpensWorkers(play.clone())));
        let engines = Engines::new(threads.clone());
        let mailbox = start(setup(config(text), backend, engines)).await.unwrap();
        let bed = Bed { play, threads, mailbox };
        for _ in 0..100 {
            bed.ask(0, 0).await.unwrap().unwrap();
            bed.ask(0, 1).await.unwrap().unwrap();
        }
        let mut slow = Vec::new();
        for thread in [0, 1] {
            let number = HELD + thread as u8;
            slow.push(bed.ask(number, thread));
            let begun = async {
                while !bed.play.begun.lock().contains(&number) {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(20), begun).await.expect("a worker rests: it has begun");
        }
        (bed, slow)
    }

    /// Asks from one of the threads.
    fn ask(&self, number: u8, thread: usize) -> Answer {
        ask_on(&self.threads[thread], &self.mailbox, number)
    }

    fn let_through(&self, number: u8) {
        self.play.let_through.send_modify(|it| it.extend([number]));
    }

    /// Until all threads have handled what they have been sent, and what followed from it.
    async fn settle(&self) {
        for thread in self.threads.iter().cycle().take(60) {
            let (done, handled) = oneshot::channel();
            thread.spawn(async {
                tokio::task::yield_now().await;
                let _ = done.send(());
            });
            handled.await.unwrap();
        }
    }

    /// What workers were handed of these.
    fn handed(&self, numbers: &[u8]) -> Vec<u8> {
        self.play.handed.lock().iter().copied().filter(|it| numbers.contains(it)).collect()
    }
}

async fn answered(answers: Vec<Answer>, what: &str) {
    for answer in answers {
        let answer = timeout(Duration::from_secs(20), answer).await;
        answer.unwrap_or_else(|_| panic!("{what} waits")).unwrap().unwrap();
    }
}

#[test]
fn nothing_waits_in_front_of_a_worker_that_is_held_up_though_its_batcher_has_no_other_one() {
    let flags: [fn(&Play) -> &AtomicBool; 2] = [|it| &it.calls_others, |it| &it.is_behind];
    for flag in flags {
        System::new().block_on(async {
            let (bed, slow) = Bed::with_busy_workers().await;
            flag(&bed.play).store(true, Ordering::SeqCst);
            let fast = [1, 2, 3, 4];
            let answers = fast.iter().map(|it| bed.ask(*it, usize::from(*it % 2))).collect();
            bed.settle().await;
            assert_eq!(bed.handed(&fast), [0_u8; 0]);
            // Whichever gets on first has them all.
            bed.let_through(HELD + 1);
            answered(answers, "a fast one").await;
            bed.let_through(HELD);
            answered(slow, "a slow one").await;
        });
    }
}

#[test]
fn what_a_busy_worker_has_not_begun_goes_to_one_of_another_batcher() {
    for through in [0, 1] {
        System::new().block_on(async {
            let (bed, slow) = Bed::with_busy_workers().await;
            let answers = (1..9).map(|it| bed.ask(it, usize::from(it % 2))).collect();
            bed.settle().await;
            bed.let_through(HELD + through);
            answered(answers, "a fast one").await;
            bed.let_through(HELD + 1 - through);
            answered(slow, "a slow one").await;
        });
    }
}
