//! An executor in this process: joins, runs and splits, on its batcher's thread or on its own.

use std::{
    mem,
    panic::{self, AssertUnwindSafe},
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Arbiter, Context, Handler, Message, MessageResult};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::join;
use troupe_base::{
    backend::{Batch, Executor, InstanceName, OpenLocal, Tensors},
    config::ModelConfig,
    error::{Error, Result},
    request::{Pending, Reply, Request, Response, Wanted},
    statistics::{Statistics, Timing, lap_time},
    trace::{BatchExecution, FinishedBatch, Span},
};

/// Groups of requests, each one execution, in order. Answered with the time they took.
#[derive(Message)]
#[rtype(result = "Duration")]
pub struct Work(pub Vec<Vec<Pending>>);

impl Work {
    /// Bytes of all inputs.
    pub fn bytes(&self) -> usize {
        let inputs = self.0.iter().flatten().flat_map(|it| &it.request.inputs).flatten();
        inputs.map(|it| it.data().len()).sum()
    }
}

/// An executor and what it needs to answer.
pub struct Local {
    executor: Box<dyn Executor>,
    name: Arc<str>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    /// Even a single request is joined: the executor sees other tensors than it has.
    has_batch_io: bool,
}

impl Local {
    /// Opens the model on this thread.
    pub fn open(
        backend: &dyn OpenLocal,
        instance: &InstanceName,
        config: Arc<ModelConfig>,
        stats: Arc<Statistics>,
    ) -> Result<Local> {
        let executor = guarded(&instance.name, || backend.open(instance))?;
        let name = (*instance.name).into();
        Ok(Local { has_batch_io: config.has_batch_io(), executor, name, config, stats })
    }

    /// Runs all groups, the first at `now`, and answers everyone, whatever happens.
    pub fn run(&mut self, work: Work, now: Instant) {
        let mut clock = now;
        for mut group in work.0 {
            match group.pop() {
                Some(alone) if group.is_empty() => self.execute_alone(alone, &mut clock),
                Some(last) => {
                    group.push(last);
                    self.execute(group, &mut clock);
                }
                None => (),
            }
        }
    }

    /// Runs one request and answers it.
    pub fn run_alone(&mut self, pending: Pending) {
        self.execute_alone(pending, &mut Instant::now());
    }

    /// One request: nothing to join, nothing to split. The clock is read once.
    fn execute_alone(&mut self, pending: Pending, clock: &mut Instant) {
        if self.has_batch_io {
            return self.execute(vec![pending], clock);
        }
        let Pending { mut request, reply } = pending;
        let queue = clock.saturating_duration_since(reply.since());
        let (rows, counted) = (request.rows(), request.counted_rows());
        let begun = *clock;
        let inputs = mem::take(&mut request.inputs);
        let result = self.call(inputs, rows, slice::from_ref(&request)).and_then(|outputs| {
            join::check_count(&self.config, &outputs)?;
            Ok(join::pick(&request.wanted, outputs))
        });
        let timing = Timing { queue, compute_infer: lap_time(clock), ..Timing::default() };
        if let Some(span) = &request.context.span {
            let (instance, requests) = (&self.name, 1);
            let ended = FinishedBatch { instance, requests, rows, begun, timing };
            BatchExecution::note(slice::from_ref(span), ended);
        }
        let result = result.map(|outputs| {
            // Counted before the answer: a client that asks right after finds itself in there.
            self.stats.execution(counted, &timing, *clock);
            Response { outputs, timing, ..Response::default() }
        });
        let result = match request.wanted {
            Wanted::All => Response::of_instance(result, &self.name),
            // It is no surprise that there are fewer.
            Wanted::Only(_) => result.map_err(|error| error.at_instance(&self.name)),
        };
        reply.answer_at(result, *clock);
    }

    fn execute(&mut self, group: Vec<Pending>, clock: &mut Instant) {
        let begun = *clock;
        let (requests, replies): (Vec<Request>, Vec<Reply>) =
            group.into_iter().map(|it| (it.request, it.reply)).unzip();
        let rows: u32 = requests.iter().map(Request::rows).sum();
        let counted = requests.iter().map(Request::counted_rows).sum();
        let spans: Vec<Span> = requests.iter().filter_map(|it| it.context.span.clone()).collect();
        let mut timing = Timing::default();
        let result = join::join(&self.config, &requests).and_then(|inputs| {
            timing.compute_input = lap_time(clock);
            let outputs = self.call(inputs, rows, &requests);
            timing.compute_infer = lap_time(clock);
            join::split(&self.config, &requests, outputs?)
        });
        timing.compute_output = lap_time(clock);
        let now = *clock;
        if !spans.is_empty() {
            let (instance, requests) = (&self.name, replies.len());
            BatchExecution::note(&spans, FinishedBatch { instance, requests, rows, begun, timing });
        }
        match result {
            Ok(outputs) => {
                self.stats.execution(counted, &timing, now);
                for (reply, outputs) in replies.into_iter().zip(outputs) {
                    let queue = begun.saturating_duration_since(reply.since());
                    let timing = Timing { queue, ..timing };
                    let response = Response { outputs, timing, ..Response::default() };
                    reply.answer_at(Ok(response), now);
                }
            }
            Err(error) => {
                let error = error.at_instance(&self.name);
                replies.into_iter().for_each(|it| it.answer_at(Err(error.clone()), now));
            }
        }
    }

    fn call(&mut self, inputs: Tensors, rows: u32, requests: &[Request]) -> Result<Tensors> {
        let rows = if self.config.max_batch_size == 0 { 0 } else { rows };
        let batch = Batch::new(inputs, rows, requests);
        guarded(&self.config.name, || self.executor.execute(batch))
    }
}

/// A `Local` on a thread of its own: its handler may block.
pub struct OwnThread(Arc<Mutex<Local>>);

/// What others hold of an `OwnThread`.
pub struct Thread {
    /// Dropped before the address: the model ends on its own thread.
    local: Arc<Mutex<Local>>,
    /// An actor whose last address is dropped stops, mail or no mail.
    pub address: Addr<OwnThread>,
}

impl Thread {
    /// Runs the work on this thread; gives it back if the model's own thread is at work.
    pub fn run_here(&self, work: Work, now: Instant) -> Option<Work> {
        let Some(mut local) = self.local.try_lock() else { return Some(work) };
        local.run(work, now);
        None
    }
}

impl OwnThread {
    /// Opens the model on a new thread. Returns once the model is loaded or has failed to.
    pub async fn spawn(
        backend: Arc<dyn OpenLocal>,
        instance: InstanceName,
        config: Arc<ModelConfig>,
        stats: Arc<Statistics>,
    ) -> Result<Thread> {
        let (loaded, ready) = oneshot::channel();
        let name = instance.name.clone();
        let arbiter = Arbiter::new();
        arbiter.spawn_fn(move || {
            let local = Local::open(&*backend, &instance, config, stats);
            if local.is_err() {
                Arbiter::current().stop();
            }
            // Nobody waits any more when the load was given up.
            let _ = loaded.send(local.map(|local| {
                let local = Arc::new(Mutex::new(local));
                Thread { address: OwnThread(local.clone()).start(), local }
            }));
        });
        ready
            .await
            .map_err(|_| Error::internal(format!("thread of '{name}' ended while loading")))?
    }
}

impl Actor for OwnThread {
    type Context = Context<Self>;

    /// The last address is gone, so is the thread.
    fn stopped(&mut self, _: &mut Self::Context) {
        Arbiter::current().stop();
    }
}

impl Handler<Work> for OwnThread {
    type Result = MessageResult<Work>;

    fn handle(&mut self, work: Work, _: &mut Self::Context) -> Self::Result {
        let begun = Instant::now();
        self.0.lock().run(work, begun);
        MessageResult(begun.elapsed())
    }
}

/// A model that panics fails its own batch, not the server.
fn guarded<T>(name: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Error::internal(format!("'{name}' panicked: {text}")))
    })
}
