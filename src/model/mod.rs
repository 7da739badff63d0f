//! A model as everyone else sees it: a config, counters, and a way to ask.

mod check;
mod labels;
mod reshape;
pub mod warmup;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

pub use self::labels::Labels;
use crate::{
    config::ModelConfig,
    error::Error,
    request::{Reply, Request},
    statistics::Statistics,
};

/// Anything that answers requests: a batcher in front of instances, or an ensemble of models.
pub trait Infer: Send + Sync {
    /// Answers later, through `reply`, on any thread. Must not block.
    fn infer(&self, request: Request, reply: Reply);
}

/// How many instances of a model can take work right now.
#[derive(Debug, Default)]
pub struct Health {
    total: AtomicUsize,
    up: AtomicUsize,
}

impl Health {
    /// Counts a new instance that is up.
    pub fn join(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.up.fetch_add(1, Ordering::Relaxed);
    }
    /// An instance lost its worker.
    pub fn down(&self) {
        self.up.fetch_sub(1, Ordering::Relaxed);
    }
    /// An instance has a worker again.
    pub fn up(&self) {
        self.up.fetch_add(1, Ordering::Relaxed);
    }
    /// At least one instance can run, or the model has none by nature (an ensemble).
    pub fn is_ready(&self) -> bool {
        self.total.load(Ordering::Relaxed) == 0 || 0 < self.up.load(Ordering::Relaxed)
    }
}

/// One loaded version of a model. Whoever holds it keeps it running.
pub struct Model {
    /// The completed config.
    pub config: Arc<ModelConfig>,
    /// The version's number.
    pub version: i64,
    /// Counters since it was loaded.
    pub stats: Arc<Statistics>,
    /// Whether its instances can run.
    pub health: Arc<Health>,
    /// Models an ensemble runs; empty for others.
    pub steps: Vec<Arc<Model>>,
    /// By output of the config; empty if none has labels.
    labels: OutputLabels,
    reshapes: bool,
    answers: Arc<dyn Infer>,
}

/// For each output of a config, the names of its classes if they have some.
pub type OutputLabels = Vec<Option<Arc<Labels>>>;

/// What a model is made of.
pub struct Parts {
    /// The completed config.
    pub config: Arc<ModelConfig>,
    /// The version's number.
    pub version: i64,
    /// Counters; shared with the instances.
    pub stats: Arc<Statistics>,
    /// Shared with the instances.
    pub health: Arc<Health>,
    /// Models an ensemble runs; empty for others.
    pub steps: Vec<Arc<Model>>,
}

impl Model {
    /// A model that `answers`.
    pub fn new(parts: Parts, answers: Arc<dyn Infer>) -> Model {
        let Parts { config, version, stats, health, steps } = parts;
        let reshapes = reshape::is_needed(&config);
        let labels = OutputLabels::new();
        Model { config, version, stats, health, steps, labels, reshapes, answers }
    }

    /// The same with names for the classes of its outputs.
    pub fn with_labels(self, labels: OutputLabels) -> Model {
        Model { labels, ..self }
    }

    /// The names of an output's classes.
    pub fn labels(&self, output: usize) -> Option<&Arc<Labels>> {
        self.labels.get(output)?.as_ref()
    }

    /// The model's name.
    pub fn name(&self) -> &Arc<str> {
        &self.config.name
    }

    /// It can take work right now, and so can all of its steps.
    pub fn is_ready(&self) -> bool {
        self.health.is_ready() && self.steps.iter().all(|it| it.is_ready())
    }

    /// Checks the request against the config, then runs it.
    pub fn infer(&self, mut request: Request, reply: Reply) {
        let is_counted = !request.context.is_warmup;
        let reply = if is_counted { reply.counted(self.stats.clone()) } else { reply };
        if self.config.decoupled && !reply.takes_many() {
            return reply.refuse(Error::unsupported(format!(
                "model '{}' is decoupled: it may give any number of responses, and the caller takes \
                 exactly one",
                self.config.name
            )));
        }
        if let Err(text) = check::check(&self.config, &mut request) {
            return reply.refuse(Error::invalid(format!("{}{text}", request.context.tag())));
        }
        if !self.reshapes {
            return self.answers.infer(request, reply);
        }
        match reshape::inputs(&self.config, &mut request.inputs) {
            Ok(()) => self.answers.infer(request, reshape::reply(self.config.clone(), reply)),
            Err(error) => reply.refuse(error),
        }
    }
}
