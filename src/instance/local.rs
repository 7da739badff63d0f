//! An executor in this process: joins, runs and splits, on its batcher's thread or on its own.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Instant,
};

use actix::{Actor, Addr, Arbiter, Context, Handler, Message};
use tokio::sync::oneshot;

use super::join;
use crate::{
    backend::{Executor, InstanceName, OpenLocal, Tensors},
    config::ModelConfig,
    error::{Error, Result},
    request::{Pending, Reply, Request, Response},
    statistics::{Statistics, Timing, lap},
};

/// Groups of requests, each one execution, in order.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Work(pub Vec<Vec<Pending>>);

/// An executor and what it needs to answer.
pub struct Local {
    executor: Box<dyn Executor>,
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
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
        instance.health.join();
        Ok(Local { executor, config, stats })
    }

    /// Runs all groups and answers everyone, whatever happens.
    pub fn run(&mut self, work: Work) {
        for group in work.0 {
            self.execute(group);
        }
    }

    fn execute(&mut self, group: Vec<Pending>) {
        let mut clock = Instant::now();
        let begun = clock;
        let (requests, replies): (Vec<Request>, Vec<Reply>) =
            group.into_iter().map(|it| (it.request, it.reply)).unzip();
        let rows: u32 = requests.iter().map(Request::rows).sum();
        let mut timing = Timing::default();
        let split = self.outputs(&requests, rows, (&mut timing, &mut clock));
        timing.compute_output = lap(&mut clock);
        // Counted before anyone is answered: a client that asks right after finds itself in there.
        if split.is_ok() {
            self.stats.execution(rows, &timing);
        }
        let outputs = match split {
            Ok(outputs) => outputs,
            Err(error) => {
                replies.into_iter().for_each(|it| it.answer(Err(error.clone())));
                return;
            }
        };
        for (reply, outputs) in replies.into_iter().zip(outputs) {
            let timing = Timing { queue: begun.saturating_duration_since(reply.since()), ..timing };
            reply.answer(Ok(Response { outputs, parameters: Vec::new(), timing }));
        }
    }

    fn outputs(
        &mut self,
        requests: &[Request],
        rows: u32,
        (timing, clock): (&mut Timing, &mut Instant),
    ) -> Result<Vec<Tensors>> {
        let inputs = join::join(requests)?;
        timing.compute_input = lap(clock);
        let batch = if self.config.max_batch_size == 0 { 0 } else { rows };
        let executor = &mut self.executor;
        let result = guarded(&self.config.name, || executor.execute(inputs, batch));
        timing.compute_infer = lap(clock);
        join::split(&self.config, requests, result?)
    }
}

/// A `Local` on a thread of its own: its handler may block.
pub struct OwnThread(Local);

impl OwnThread {
    /// Opens the model on a new thread. Returns once the model is loaded or has failed to.
    pub async fn spawn(
        backend: Arc<dyn OpenLocal>,
        instance: InstanceName,
        config: Arc<ModelConfig>,
        stats: Arc<Statistics>,
    ) -> Result<Addr<OwnThread>> {
        let (loaded, ready) = oneshot::channel();
        let name = instance.name.clone();
        let arbiter = Arbiter::new();
        arbiter.spawn_fn(move || {
            let local = Local::open(&*backend, &instance, config, stats);
            if local.is_err() {
                Arbiter::current().stop();
            }
            // Nobody waits any more when the load was given up.
            let _ = loaded.send(local.map(|local| OwnThread(local).start()));
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
    type Result = ();

    fn handle(&mut self, work: Work, _: &mut Self::Context) {
        self.0.run(work);
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
