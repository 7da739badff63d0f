//! Answers requests by running other models: config → petgraph → plan → step actors.

mod batch;
mod check;
pub mod graph;
mod labels;
mod parts;
mod plan;
mod run;
mod sequence;
mod step;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc, time::Instant};

use actix::Actor;
use tokio::sync::oneshot;

pub use self::{check::check, labels::labels};
use self::{
    plan::Plan,
    run::Run,
    step::{Step, Team},
};
use crate::{
    config::{ModelConfig, Problem},
    engines::Engines,
    metrics::Metrics,
    model::{Infer, Model},
    request::{Answer, Reply, Request, Response},
    statistics::{Statistics, Timing},
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
    let configs: Vec<_> = models.iter().map(|it| Some(&*it.config)).collect();
    let problems = check(&config, ensemble, &configs);
    if !problems.is_empty() {
        return Err(problems.iter().map(told).collect());
    }
    let waits_for_itself = |step: usize| {
        let model = &ensemble.steps[step].model;
        vec![format!("in ensemble {}, step {step} (model {model}) waits for itself", config.name)]
    };
    let graph = graph::build(ensemble).map_err(waits_for_itself)?;
    let step = |index: usize| Step {
        index,
        limit: ensemble.max_inflight_requests,
        in_flight: 0,
        waiting: VecDeque::new(),
    };
    let steps: Vec<Step> = (0..ensemble.steps.len()).map(step).collect();
    let measured = models.into_iter().enumerate().map(|(index, model)| {
        let metrics = metrics.step(&config.name, index, model.name());
        (model, metrics)
    });
    let plan = Arc::new(Plan::new(config.clone(), ensemble, measured.collect(), &graph));

    let (started, team) = oneshot::channel();
    // All on one thread: a tensor's way to the neighbour is then a message of half a microsecond.
    engines.pick().spawn_fn(move || {
        // Nobody waits any more when the load was given up.
        let _ = started.send(steps.into_iter().map(Actor::start).collect::<Vec<_>>());
    });
    let gone = |_| vec![format!("the engine stopped while '{}' loaded", config.name)];
    let team = team.await.map_err(gone)?.into();
    Ok(Arc::new(Ensemble { plan, stats, team }))
}

/// Triton's text first, then where the step was written.
fn told(problem: &Problem) -> String {
    match problem.place.line {
        0 => problem.text.clone(),
        _ => format!("{} ({})", problem.text, problem.place),
    }
}

struct Ensemble {
    plan: Arc<Plan>,
    stats: Arc<Statistics>,
    team: Team,
}

impl Infer for Ensemble {
    fn infer(&self, request: Request, reply: Reply) {
        let since = reply.since();
        let counted = Counted { stats: self.stats.clone(), rows: request.counted_rows(), reply };
        let reply = Reply::new_at(counted, since);
        let (run, ready) = Run::begin(self.plan.clone(), self.team.clone(), request, reply);
        step::start(&run, ready);
    }
}

/// An ensemble's answer is its execution: one per request.
struct Counted {
    stats: Arc<Statistics>,
    rows: u32,
    reply: Reply,
}

impl Answer for Counted {
    fn answer(self: Box<Self>, result: crate::error::Result<Response>, now: Instant) {
        if let Ok(response) = &result {
            self.stats.execution(self.rows, &response.timing, now);
        }
        self.reply.answer_at(result, now);
    }

    fn takes_many(&self) -> bool {
        self.reply.takes_many()
    }

    fn part(&mut self, result: crate::error::Result<Response>, _: Instant) {
        self.reply.part(result);
    }

    fn end(self: Box<Self>, now: Instant) {
        self.stats.execution(self.rows, &Timing::default(), now);
        self.reply.end(Timing::default());
    }
}
