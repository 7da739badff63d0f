//! The handle of a running server, for whoever embeds it and for `main`.

use std::{borrow::Cow, sync::Arc, thread, time::Duration};

use actix_rt::System;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    ending::Ending,
    listeners::Addresses,
    serving::{Channels, Running, Shutdown, serve},
};
use troupe_base::{
    budget::{Account, Charge, Kind},
    error::{Error, Result},
    metrics::Metrics,
    model::place_inputs,
    request::{Context, Request},
    tensor::{SegmentPool, Tensor},
};
use troupe_gateway::inference::Admitted;
use troupe_observability::log::Log;
use troupe_options::Serve;
use troupe_repository::{Repository, Summary};

/// A running server. Its methods may be called on any thread and any runtime.
///
/// Dropping it ends the server at once, without waiting for what is in flight; `stop` waits.
pub struct Server {
    running: Running,
    /// What requests of this process itself are charged to.
    account: Arc<Account>,
    commands: mpsc::UnboundedSender<Shutdown>,
    loaded: watch::Receiver<Option<Arc<Summary>>>,
    ended: watch::Receiver<Option<Ending>>,
}

impl Server {
    /// Opens the listeners that the options allow, which may be none, and begins to load models;
    /// `loaded` waits for them.
    ///
    /// `log` holds the log settings that clients see and change; what is logged goes to the
    /// subscriber of `tracing` that the process has. Fails if options contradict each other, and if
    /// a listener cannot be opened.
    pub async fn start(options: Serve, log: Log) -> Result<Server> {
        if let Some(problem) = options.problem() {
            return Err(Error::invalid(problem));
        }
        let (commands, received) = mpsc::unbounded_channel();
        let (load_sender, loaded) = watch::channel(None);
        let (end_sender, ended) = watch::channel(None);
        let (start_sender, started) = oneshot::channel();
        let channels = Channels {
            started: start_sender,
            loaded: load_sender,
            ended: end_sender,
            commands: received,
        };
        let run = move || {
            let system = System::new();
            system.block_on(serve(options, log, channels));
            // Ends the arbiters too. What still blocks a thread is waited for here, by nobody else.
            System::current().stop();
            if let Err(error) = system.run() {
                tracing::error!("the server's threads were not stopped: {error}");
            }
        };
        let spawned = thread::Builder::new().name("troupe-server".to_owned()).spawn(run);
        spawned.map_err(|error| Error::internal(format!("no thread for the server: {error}")))?;
        let lost = |_| Error::internal("the server's thread ended while it started");
        let running = started.await.map_err(lost)??;
        let account = Account::new(&running.state.settings.budget);
        Ok(Server { running, account, commands, loaded, ended })
    }

    /// Where it listens, with the ports that were free where the options say 0.
    pub fn addresses(&self) -> &Addresses {
        &self.running.addresses
    }

    /// Waits until everything asked for at the start was loaded or has failed; `None` if the server
    /// ended before.
    pub async fn loaded(&self) -> Option<Arc<Summary>> {
        let mut loaded = self.loaded.clone();
        loaded.wait_for(Option::is_some).await.ok()?.clone()
    }

    /// What `/v2/health/ready` says.
    pub async fn is_ready(&self) -> bool {
        let state = &self.running.state;
        !state.lifecycle.is_exiting() && state.is_ready().await
    }

    /// Its models, and how to load and unload them.
    pub fn repository(&self) -> &Repository {
        &self.running.state.repository
    }

    /// What it counts; nothing if its options allow no metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.running.metrics
    }

    /// Its shared memory for tensors.
    pub fn segments(&self) -> &Arc<SegmentPool> {
        &self.running.state.settings.segments
    }

    /// Asks a model in this process: named inputs to named outputs, those that were answered.
    /// `version: None` is the highest that is ready. Dropping the future cancels the request.
    ///
    /// The request is counted and admitted like one of a client; it is in no access log and no
    /// trace. All requests of this kind together have the share of one connection: what their
    /// inputs hold of `--max-inflight-bytes`, and their outputs until they are dropped. A decoupled
    /// model is refused: it may answer any number of times.
    pub async fn infer(
        &self,
        model: &str,
        version: Option<i64>,
        inputs: Vec<(&str, Tensor)>,
    ) -> Result<Vec<(String, Tensor)>> {
        let state = &self.running.state;
        let admitted = Admitted::in_process(state, model, version)?;
        let model = &admitted.model;
        let charge = Charge::open(&self.account)?;
        let bytes = inputs.iter().map(|(_, tensor)| tensor.data().len()).sum();
        charge.add(Kind::Received, bytes)?;
        let context = Context { charge, ..Context::default() };
        let inputs =
            inputs.into_iter().map(|(name, tensor)| (Cow::Borrowed(name), tensor.of_counted()));
        let inputs = place_inputs(&model.config, inputs, &context)?;
        let request = Request { inputs, context: context.into(), ..Request::default() };
        let response = admitted.run_in_process(request).await?;
        let outputs = model.config.outputs.iter().zip(response.outputs);
        Ok(outputs.filter_map(|(output, it)| Some((output.name.to_string(), it?))).collect())
    }

    /// Refuses new requests, lets those in flight finish within `grace`, then ends the server and
    /// its workers. May be called again while it waits, and `abort` as well.
    pub async fn stop(&self, grace: Duration) -> Ending {
        self.shut_down(Shutdown::Drain(grace)).await
    }

    /// Ends the server at once; worker processes have `workers_grace` to finalize their models.
    pub async fn abort(&self, workers_grace: Duration) -> Ending {
        self.shut_down(Shutdown::Abort(workers_grace)).await
    }

    async fn shut_down(&self, shutdown: Shutdown) -> Ending {
        // A server that has ended needs no command.
        let _ = self.commands.send(shutdown);
        self.ended().await
    }

    /// Waits for its end, whoever ended it.
    pub async fn ended(&self) -> Ending {
        let mut ended = self.ended.clone();
        let ending = ended.wait_for(Option::is_some).await;
        // An error means that its thread panicked.
        ending.ok().and_then(|it| *it).unwrap_or(Ending::Aborted)
    }
}
