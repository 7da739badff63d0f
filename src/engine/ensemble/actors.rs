//! Starts an ensemble: its plan, an actor for each step, and the model that is made of them.

use std::sync::Arc;

use actix::Actor;
use futures_util::future::try_join_all;
use tokio::sync::oneshot;

use super::{
    plan::{Plan, PlannedStep, compile},
    run::{self, ClientReply, RunInputs, RunSetup, StepActor, StepAddrs},
    stream,
};
use crate::engines::{Engines, Neighbourhood};
use troupe_base::{
    config::{EnsembleConfig, ModelConfig},
    metrics::{Metrics, activity::EnsembleActivity},
    model::{Infer, Model},
    request::{Reply, Request},
    statistics::Statistics,
    tap::Taps,
};

/// What an ensemble is made of.
pub struct EnsembleSetup {
    /// The checked config.
    pub config: Arc<ModelConfig>,
    /// Shared with the model.
    pub stats: Arc<Statistics>,
    /// The model of each step, in the order of the config; one model may serve several steps.
    pub steps: Vec<Arc<Model>>,
    /// Where step actors live.
    pub engines: Engines,
    /// Where steps are measured.
    pub metrics: Metrics,
    /// The outermost ensemble around it, if that alone runs it: its models are there.
    pub around: Option<Arc<str>>,
}

/// Checks the config against the completed configs of its steps and starts the step actors.
///
/// Every problem is one line, Triton's text first, ready to be joined for a reason.
pub async fn start(setup: EnsembleSetup) -> Result<Arc<dyn Infer>, Vec<String>> {
    let EnsembleSetup { config, stats, steps: models, engines, metrics, around } = setup;
    let Some(ensemble) = &config.ensemble else {
        return Err(vec![format!("model '{}' is not an ensemble", config.name)]);
    };
    let plan = Arc::new(compile(&config, ensemble, models, &metrics)?);
    announce(&plan, ensemble);
    let neighbours = neighbours(&plan, ensemble, &engines, around.as_ref().unwrap_or(&config.name));
    let step_addrs = start_actors(&plan, ensemble, &engines, neighbours.as_deref()).await;
    let stopped = |_| vec![format!("the engine stopped while '{}' loaded", config.name)];
    let step_addrs = step_addrs.map_err(stopped)?;
    Ok(Arc::new(Ensemble { step_addrs, plan, stats, _neighbours: neighbours }))
}

/// Where the actors of an ensemble are that has to have them in one place; `None` if it need not.
fn neighbours(
    plan: &Plan,
    ensemble: &EnsembleConfig,
    engines: &Engines,
    outermost: &Arc<str>,
) -> Option<Arc<Neighbourhood>> {
    // A limit is counted in one place, and a stream's events are in the order of one mailbox.
    let is_in_one_place = ensemble.max_inflight_requests != 0 || plan.is_decoupled();
    is_in_one_place.then(|| engines.beside(outermost))
}

/// Starts all actors of an ensemble: one for each step, in that place or on each engine thread.
async fn start_actors(
    plan: &Plan,
    ensemble: &EnsembleConfig,
    engines: &Engines,
    neighbours: Option<&Neighbourhood>,
) -> Result<StepAddrs, oneshot::error::RecvError> {
    let (limit, starts_anywhere) = (ensemble.max_inflight_requests, neighbours.is_none());
    let threads = match neighbours {
        None => engines.all().to_vec(),
        Some(neighbours) => vec![engines.all()[neighbours.thread()].clone()],
    };
    let sets = threads.into_iter().map(|thread| {
        let actor = |step| StepActor::new(step, limit, plan.live.clone());
        let actors: Vec<StepActor> = (0..ensemble.steps.len()).map(actor).collect();
        let (started, addrs) = oneshot::channel();
        // A set is on one thread: a tensor's way to the neighbour is then a message of half a
        // microsecond.
        thread.spawn_fn(move || {
            // Nobody waits any more when the load was given up.
            let _ = started.send(actors.into_iter().map(Actor::start).collect::<Box<[_]>>());
        });
        addrs
    });
    Ok(StepAddrs { sets: try_join_all(sets).await?.into(), starts_anywhere })
}

/// What is worth knowing before the first request.
fn announce(plan: &Plan, ensemble: &EnsembleConfig) {
    let (name, limit) = (&plan.config.name, ensemble.max_inflight_requests);
    if limit != 0 {
        tracing::info!("Ensemble model '{name}' configured with max_inflight_requests: {limit}");
    }
    let is_reentered = |step: &&PlannedStep| step.decoupled().is_some_and(|it| it.is_reentered);
    for step in plan.steps.iter().filter(is_reentered) {
        tracing::warn!(
            "in ensemble '{name}', model '{}' is decoupled and runs again on its own responses: it \
             does not wait until they are taken, and they take as much memory as it makes of them",
            step.model.name()
        );
    }
}

struct Ensemble {
    plan: Arc<Plan>,
    stats: Arc<Statistics>,
    step_addrs: StepAddrs,
    /// Held, so that others come to the same thread.
    _neighbours: Option<Arc<Neighbourhood>>,
}

impl Ensemble {
    /// One run, whose outputs are the client's.
    fn run(&self, request: Request, reply: Reply) {
        let Ensemble { plan, stats, step_addrs, .. } = self;
        let is_warmup = request.context.is_warmup;
        let rows = request.counted_rows();
        let since = reply.since();
        let setup = RunSetup {
            route: plan.routes(&request.wanted)[0].clone(),
            tap: plan.taps.begin(&request, &plan.inputs),
            plan: plan.clone(),
            step_addrs: step_addrs.clone(),
            context: request.context,
            wanted: request.wanted,
            left_out: None,
            is_timed: plan.metrics.is_on() && !is_warmup,
        };
        let tensors = plan.inputs.iter().copied().zip(request.inputs);
        let inputs = RunInputs { tensors, batch: request.batch, sequence: None };
        let reply = ClientReply { stats: stats.clone(), rows, is_warmup, reply };
        // The clock has just been read.
        run::start(setup, inputs, Box::new(reply), since);
    }
}

impl Infer for Ensemble {
    fn infer(&self, request: Request, reply: Reply) {
        if self.plan.is_decoupled() {
            stream::start(&self.plan, &self.step_addrs, &self.stats, request, reply);
        } else {
            self.run(request, reply);
        }
    }

    fn taps(&self) -> Option<&Taps> {
        Some(&self.plan.taps)
    }

    fn live(&self) -> Option<&Arc<EnsembleActivity>> {
        Some(&self.plan.live)
    }
}
