//! A model as everyone else sees it: a config, counters, and a way to ask.

mod check;
mod class_labels;
mod health;
mod lookup;
mod names;
mod reshape;
mod succession;
mod trace;
pub mod warmup;

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;

pub use self::{
    class_labels::ClassLabels,
    health::Health,
    lookup::{LoadTarget, Lookup, Overrides},
    names::{parse_version, pick_outputs, place_inputs, unexpected_input},
};
use crate::{
    budget::{Budget, ByteBudget, Reason, Reserved, is_worth_counting},
    config::{BackendTraits, ModelConfig},
    error::{Error, Result},
    metrics::activity::EnsembleActivity,
    request::{Reply, Request},
    statistics::{Statistics, ThreadArcs},
    tap::Taps,
    tensor::Owner,
};
use troupe_proto::inference;

/// Anything that answers requests: a batcher in front of instances, or an ensemble of models.
pub trait Infer: Send + Sync {
    /// Answers later, through `reply`, on any thread. Must not block.
    fn infer(&self, request: Request, reply: Reply);

    /// What it wraps, if it is a decorator: one that holds files, or keeps responses. A decorator
    /// says this and how it infers, and nothing else: the methods below ask what it wraps.
    fn inner(&self) -> Option<&dyn Infer> {
        None
    }

    /// Asks the model's own code whether it is ready; `None` if it has no such code.
    fn readiness(&self) -> Option<Readiness> {
        self.inner()?.readiness()
    }

    /// How many sequences it has to go on with.
    fn sequences(&self) -> usize {
        self.inner().map_or(0, Infer::sequences)
    }

    /// It takes the place of this model: requests of sequences that have begun there go there.
    fn succeed(&self, predecessor: &Arc<Model>) {
        if let Some(inner) = self.inner() {
            inner.succeed(predecessor);
        }
    }

    /// So many reloads have replaced it.
    fn succeeded(&self, age: usize) {
        if let Some(inner) = self.inner() {
            inner.succeeded(age);
        }
    }

    /// What happens inside an ensemble right now; `None` for other models.
    fn live(&self) -> Option<&Arc<EnsembleActivity>> {
        self.inner()?.live()
    }

    /// Has it the instances of this config, which differs in nothing else, while it serves on; `None`
    /// if that takes another load.
    fn scale(&self, config: &ModelConfig) -> Option<BoxFuture<'static, Result<()>>> {
        self.inner()?.scale(config)
    }

    /// Where the tensors between the steps of an ensemble can be captured; `None` for other models.
    fn taps(&self) -> Option<&Taps> {
        self.inner()?.taps()
    }
}

/// What a model's own code says of being ready, within seconds; an error says why it is not.
pub type Readiness = BoxFuture<'static, Result<()>>;

/// One loaded version of a model. Whoever holds it keeps it running.
pub struct Model {
    /// The completed config, as it was loaded.
    pub config: Arc<ModelConfig>,
    /// With the instances that it has now, if their number has changed.
    scaled: Mutex<Option<Arc<ModelConfig>>>,
    /// The version's number.
    pub version: i64,
    /// Counters since it was loaded.
    pub stats: Arc<Statistics>,
    /// Whether its instances can run.
    pub health: Arc<Health>,
    /// Models an ensemble runs; empty for others.
    pub steps: Vec<Arc<Model>>,
    /// Worker processes read what clients send to it, or to a model it runs: large bodies are
    /// received in memory that those can map.
    pub shares_memory: bool,
    /// Owns the shared memory of requests that are addressed to it.
    pub owner: Owner,
    /// Of what was loaded, equal on all servers that load the same; only where servers share a
    /// response cache.
    pub fingerprint: Option<u128>,
    /// By output of the config; empty if none has labels.
    labels: OutputLabels,
    reshapes: bool,
    answers: Arc<dyn Infer>,
    /// Its statistics, for requests in flight.
    counted: ThreadArcs<Statistics>,
    /// Its share of the server's memory, for the inputs of requests that wait for it or run; `None`
    /// without a limit.
    share: Option<ModelShare>,
}

/// What the inputs of a model's requests may hold of the server's memory.
struct ModelShare {
    bytes: Arc<Budget>,
    server: Arc<ByteBudget>,
}

/// For each output of a config, the names of its classes if they have some.
pub type OutputLabels = Vec<Option<Arc<ClassLabels>>>;

/// What a model is made of.
pub struct ModelParts {
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
    pub fn new(parts: ModelParts, answers: Arc<dyn Infer>) -> Model {
        let ModelParts { config, version, stats, health, steps } = parts;
        let reshapes = reshape::is_needed(&config);
        let labels = OutputLabels::new();
        let own = BackendTraits::of(&config.backend).shares_memory;
        let shares_memory = own || steps.iter().any(|step| step.shares_memory);
        let owner = Owner::unique();
        let counted = ThreadArcs::new(stats.clone());
        Model {
            config,
            scaled: Mutex::default(),
            version,
            stats,
            health,
            steps,
            shares_memory,
            owner,
            fingerprint: None,
            labels,
            reshapes,
            answers,
            counted,
            share: None,
        }
    }

    /// The same with a limit on the inputs that wait for it.
    pub fn with_share(self, server: &Arc<ByteBudget>) -> Model {
        let share = ModelShare { bytes: server.model_share(), server: server.clone() };
        Model { share: Some(share), ..self }
    }

    /// The same with what other servers know it by.
    pub fn with_fingerprint(self, fingerprint: Option<u128>) -> Model {
        Model { fingerprint, ..self }
    }

    /// The config with the instances that it has now: what clients see.
    pub fn shown_config(&self) -> Arc<ModelConfig> {
        self.scaled.lock().clone().unwrap_or_else(|| self.config.clone())
    }

    /// Has it the instances of this config while it serves on, if they are others; `None` if that takes
    /// another load: something else is different, too, or its instances stay what they are. Which
    /// versions there are is not its own affair.
    pub async fn scale(&self, config: Arc<ModelConfig>) -> Option<Result<()>> {
        let shown = self.shown_config();
        let [was, wanted] = [&shown.proto, &config.proto].map(|proto| {
            let (instance_group, version_policy) = Default::default();
            inference::ModelConfig { instance_group, version_policy, ..proto.clone() }
        });
        if was != wanted {
            return None;
        }
        let scaled = match shown.instance_groups == config.instance_groups {
            true => Ok(()),
            false => self.answers.scale(&config)?.await,
        };
        if scaled.is_ok() {
            let (name, version) = (self.name(), self.version);
            tracing::info!("`{name}` version {version} is not loaded again: it goes on as it is");
            *self.scaled.lock() = Some(config);
        }
        Some(scaled)
    }

    /// The model's name.
    pub fn name(&self) -> &Arc<str> {
        &self.config.name
    }

    /// It can take work right now, and so can all of its steps. What their own code says is not
    /// asked for.
    pub fn is_ready(&self) -> bool {
        self.health.is_ready() && self.steps.iter().all(|it| it.is_ready())
    }

    /// Why it can take no work right now; `None` while it can.
    pub fn why_not(&self) -> Option<String> {
        let of_step = |it: &Arc<Model>| Some(format!("'{}': {}", it.name(), it.why_not()?));
        self.health.why_not().or_else(|| self.steps.iter().find_map(of_step))
    }

    /// The same, and its own code and that of its steps agree.
    pub async fn check_ready(&self) -> bool {
        self.is_ready() && all_ready(self.readiness()).await
    }

    /// Asks its own code and that of its steps; empty for most models.
    pub fn readiness(&self) -> Vec<Readiness> {
        let steps = self.steps.iter().flat_map(|it| it.readiness());
        self.answers.readiness().into_iter().chain(steps).collect()
    }

    /// What happens inside it right now; `None` if it is not an ensemble.
    pub fn live(&self) -> Option<&Arc<EnsembleActivity>> {
        self.answers.live()
    }

    /// Where an ensemble's tensors can be captured.
    pub fn taps(&self) -> Option<&Taps> {
        self.answers.taps()
    }

    /// Does the order matter in which requests of a client reach it, or a model that it runs?
    pub fn has_sequences(&self) -> bool {
        self.config.sequences().is_some() || self.steps.iter().any(|it| it.has_sequences())
    }

    /// How many sequences it has to go on with.
    pub fn sequences(&self) -> usize {
        self.answers.sequences()
    }

    /// It takes the place of this model: requests of sequences that have begun there go there, if
    /// what it takes and gives would be taken and given there, too.
    pub fn succeed(&self, predecessor: &Arc<Model>) {
        if succession::can_succeed(&self.config, &predecessor.config) {
            self.answers.succeed(predecessor);
        }
    }

    /// So many reloads have replaced it.
    pub fn succeeded(&self, age: usize) {
        self.answers.succeeded(age);
    }

    /// Runs a request that its successor has checked. It stays until that is answered.
    pub fn go_on(self: &Arc<Model>, request: Request, reply: Reply) {
        self.answers.infer(request, reply.holding(self.clone()));
    }

    /// Checks the request against the config, then runs it.
    pub fn infer(&self, request: Request, reply: Reply) {
        if let Err((error, reply)) = self.admit(request, reply) {
            reply.refuse(error);
        }
    }

    /// The same, but a request that does not fit is not answered: the reply comes back.
    #[allow(clippy::result_large_err, reason = "the reply comes back as it went in, and rarely")]
    pub fn admit(&self, mut request: Request, reply: Reply) -> Result<(), (Error, Reply)> {
        request.context.owner.set_first(self.owner);
        let is_counted = !request.context.is_warmup;
        let reply = if is_counted { reply.counted(self.counted.this_thread()) } else { reply };
        let reply = match request.context.span.clone() {
            Some(span) => self.note(&span, &mut request, reply),
            None => reply,
        };
        if let Err(error) = self.check(&mut request, &reply) {
            return Err((error, reply));
        }
        let reply = if request.context.charge.counts_anything() {
            match self.reserve(&request) {
                Ok(inputs) => reply.charged(request.context.charge.clone(), inputs),
                Err(error) => return Err((error, reply)),
            }
        } else {
            reply
        };
        if self.reshapes {
            if let Err(error) = reshape::inputs(&self.config, &mut request.inputs) {
                return Err((error, reply));
            }
            let reply = reshape::reply(self.config.clone(), reply);
            self.answers.infer(request, reply);
        } else {
            self.answers.infer(request, reply);
        }
        Ok(())
    }

    fn check(&self, request: &mut Request, reply: &Reply) -> Result<()> {
        if self.config.decoupled && !reply.takes_many() {
            return Err(Error::unsupported(format!(
                "model '{}' is decoupled: it may give any number of responses, and the caller takes \
                 exactly one",
                self.config.name
            )));
        }
        if let Some(chain) = &request.context.call_chain {
            chain.check_recursion(self.name(), self.version).map_err(Error::unsupported)?;
        }
        self.fits(request)
    }

    /// RESOURCE_EXHAUSTED if its requests hold so much of its share that one with inputs of so many
    /// bytes has no room: it need not be received.
    pub fn check_room(&self, bytes: usize) -> Result<()> {
        let Some(share) = self.share.as_ref().filter(|_| is_worth_counting(bytes)) else {
            return Ok(());
        };
        let in_use = share.bytes.in_use();
        if share.bytes.cap() < in_use.saturating_add(bytes) {
            return Err(self.no_room(share, in_use, bytes));
        }
        Ok(())
    }

    /// Takes what the inputs need of the model's share; nothing for small ones.
    fn reserve(&self, request: &Request) -> Result<Option<Reserved>> {
        let Some(share) = &self.share else { return Ok(None) };
        let bytes = request.inputs.iter().flatten().map(|it| it.data().len()).sum();
        if !request.context.charge.counts(bytes) {
            return Ok(None);
        }
        let reserved = share.bytes.reserve(bytes);
        reserved.map(Some).map_err(|full| self.no_room(share, full.in_use, bytes))
    }

    fn no_room(&self, share: &ModelShare, in_use: usize, asked: usize) -> Error {
        share.server.count_refusal(Reason::ModelBytes);
        let cap = share.bytes.cap();
        let text = format!(
            "no memory for this request: the inputs of requests at model '{}' hold {in_use} of {cap} \
             bytes (its share of --max-inflight-bytes), and it needs {asked} more",
            self.name()
        );
        match cap < asked {
            true => Error::too_large(text + ": it can never have them"),
            false => Error::exhausted(text),
        }
    }

    /// Does the request fit the config? Sets its batch size, or says in Triton's words what is
    /// wrong.
    pub fn fits(&self, request: &mut Request) -> Result<()> {
        check::check(&self.config, request)
            .map_err(|text| Error::invalid(format!("{}{text}", request.context.tag())))
    }
}

/// Do all of them say that they are ready?
pub async fn all_ready(asked: Vec<Readiness>) -> bool {
    join_all(asked).await.iter().all(Result::is_ok)
}
