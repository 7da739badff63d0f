//! Answers requests by running other models: config → petgraph → plan → step actors.

mod batch_dim;
mod check;
mod flow;
mod graph;
mod labels;
mod level;
mod levels;
mod missing;
mod order;
mod plan;
mod run;
mod sequence;
mod split;
mod step;
#[cfg(test)]
mod tests;
mod turn;
mod watch;
mod window;

use std::{collections::VecDeque, sync::Arc, time::Instant};

use actix::Actor;
use tokio::sync::oneshot;

pub use self::{
    batch_dim::adapt_batch_dim,
    check::check,
    graph::build as build_graph,
    labels::labels,
    split::{BatchFit, batch_fit},
};
use self::{
    flow::Flow,
    plan::Plan,
    run::{Run, To},
    step::{Step, Team},
};
use crate::engines::Engines;
use troupe_base::{
    config::{EnsembleConfig, ModelConfig, Problem},
    metrics::{Metrics, activity::EnsembleActivity},
    model::{Infer, Model},
    request::{Answer, Reply, Request, Response},
    statistics::Statistics,
    tap::Taps,
};

/// What an ensemble is made of.
pub struct Setup {
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
}

/// Checks the config against the completed configs of its steps and starts the step actors.
///
/// Every problem is one line, Triton's text first, ready to be joined for a reason.
pub async fn start(setup: Setup) -> Result<Arc<dyn Infer>, Vec<String>> {
    let Setup { config, stats, steps: models, engines, metrics } = setup;
    let Some(ensemble) = &config.ensemble else {
        return Err(vec![format!("model '{}' is no ensemble", config.name)]);
    };
    let plan = Arc::new(plan(&config, ensemble, models, &metrics)?);
    let window = window::limit(&config).map_err(|it| vec![it.message()])?;
    announce(&plan, ensemble);
    let step = |index: usize| Step {
        index,
        limit: ensemble.max_inflight_requests,
        in_flight: 0,
        waiting: VecDeque::new(),
        watched: Vec::new(),
        is_swept: false,
        live: plan.live.clone(),
    };
    let steps: Vec<Step> = (0..ensemble.steps.len()).map(step).collect();

    let (started, team) = oneshot::channel();
    // All on one thread: a tensor's way to the neighbour is then a message of half a microsecond.
    engines.pick().spawn_fn(move || {
        // Nobody waits any more when the load was given up.
        let _ = started.send(steps.into_iter().map(Actor::start).collect::<Vec<_>>());
    });
    let gone = |_| vec![format!("the engine stopped while '{}' loaded", config.name)];
    let team = team.await.map_err(gone)?.into();
    Ok(Arc::new(Ensemble { plan, stats, team, window }))
}

fn plan(
    config: &Arc<ModelConfig>,
    ensemble: &EnsembleConfig,
    models: Vec<Arc<Model>>,
    metrics: &Metrics,
) -> Result<Plan, Vec<String>> {
    let all_told =
        |problems: Vec<Problem>| problems.iter().map(Problem::message).collect::<Vec<_>>();
    let configs: Vec<_> = models.iter().map(|it| Some(&*it.config)).collect();
    let problems = check(config, ensemble, &configs);
    if !problems.is_empty() {
        return Err(all_told(problems));
    }
    let waits_for_itself = |step: usize| {
        let model = &ensemble.steps[step].model;
        vec![format!("in ensemble {}, step {step} (model {model}) waits for itself", config.name)]
    };
    let graph = graph::build(ensemble).map_err(waits_for_itself)?;
    let is_decoupled: Vec<bool> = models.iter().map(|it| it.config.decoupled).collect();
    let levels = levels::levels(config, ensemble, &graph, &is_decoupled).map_err(all_told)?;
    let measured = models.into_iter().enumerate().map(|(index, model)| {
        let metrics = metrics.step(&config.name, index, model.name());
        (model, metrics)
    });
    let measured = (metrics.ensemble(&config.name), measured.collect());
    Ok(Plan::new(config.clone(), ensemble, measured, (&graph, &levels)))
}

/// What is worth knowing before the first request.
fn announce(plan: &Plan, ensemble: &EnsembleConfig) {
    let (name, limit) = (&plan.config.name, ensemble.max_inflight_requests);
    if limit != 0 {
        tracing::info!("Ensemble model '{name}' configured with max_inflight_requests: {limit}");
    }
    for step in plan.steps.iter().filter(|it| it.is_reentered) {
        tracing::warn!(
            "in ensemble '{name}', model '{}' is decoupled and runs again on its own responses: it \
             does not wait until they are taken, and they take as much memory as it makes of them",
            step.model.name()
        );
    }
}

/// The config with `decoupled` as the steps make it, whatever was written: as soon as one of them
/// is, so is the whole.
pub fn completed<'a>(
    config: &Arc<ModelConfig>,
    mut steps: impl Iterator<Item = &'a ModelConfig>,
) -> Arc<ModelConfig> {
    let decoupled = steps.any(|it| it.decoupled);
    if config.decoupled == decoupled {
        return config.clone();
    }
    Arc::new(config.with_decoupled(decoupled))
}

struct Ensemble {
    plan: Arc<Plan>,
    stats: Arc<Statistics>,
    team: Team,
    /// Bytes for the iterations of a request, for each level.
    window: u64,
}

impl Infer for Ensemble {
    fn taps(&self) -> Option<&Taps> {
        Some(&self.plan.taps)
    }

    fn infer(&self, request: Request, reply: Reply) {
        if !self.plan.decoupled.is_empty() {
            return Flow::start(self, request, reply);
        }
        let since = reply.since();
        let counted = Counted { stats: self.stats.clone(), rows: request.counted_rows(), reply };
        let reply = Reply::new_at(counted, since);
        let (run, ready) =
            Run::begin(self.plan.clone(), self.team.clone(), request, To::Client(reply));
        step::start(&run, ready, since);
    }

    fn live(&self) -> Option<&Arc<EnsembleActivity>> {
        Some(&self.plan.live)
    }
}

/// An ensemble's answer is its execution: one per request.
struct Counted {
    stats: Arc<Statistics>,
    rows: u32,
    reply: Reply,
}

impl Answer for Counted {
    fn answer(self: Box<Self>, result: troupe_base::error::Result<Response>, now: Instant) {
        if let Ok(response) = &result {
            self.stats.execution(self.rows, &response.timing, now);
        }
        self.reply.answer_at(result, now);
    }
}
