//! Opens one version of a model: completes its config, checks it, starts and warms up what answers.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use futures_util::future::LocalBoxFuture;
use tokio::{sync::OwnedSemaphorePermit, task::spawn_blocking};

use super::{fingerprints, kept_files::KeepsFiles, warmup};
use crate::{
    Settings,
    disk::{
        self,
        definition::{Content, Definition},
        labels,
    },
    failure::unknown_backend,
};
use troupe_base::{
    backend::{Backend, ModelFiles},
    config::{self, Draft, ModelConfig, json, scheduling_warnings},
    error::{Error, Result},
    metrics::{CountedTraits, Metrics},
    model::{Health, Infer, Model, ModelParts, OutputLabels, warmup::WarmupSample},
    request::StateSet,
    statistics::Statistics,
};
use troupe_engine::{batcher, engines::Engines, ensemble};
use troupe_proto::inference::model_config::SchedulingChoice;

/// Where and when a model may be opened.
pub(crate) struct ModelPlace {
    /// The only ensemble that runs it, or the one around that: they live together.
    pub(crate) ensemble: Option<Arc<str>>,
    /// Given back once it is open: a model whose warm-up hangs keeps nobody from loading.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Makes models answer; tests have one that opens nothing.
pub(crate) trait OpenModel {
    /// A model that its backend runs.
    fn single(
        &self,
        definition: Arc<Definition>,
        version: i64,
        place: ModelPlace,
    ) -> LocalBoxFuture<'static, Result<Arc<Model>>>;

    /// Gives a model the instances its config wants by now, if that means something else; `None` if more
    /// has changed.
    fn scale(
        &self,
        _: Arc<Definition>,
        _: Arc<Model>,
    ) -> LocalBoxFuture<'static, Option<Result<()>>> {
        Box::pin(async { None })
    }

    /// An ensemble of models that are loaded, maybe inside the one `around`; on failure every
    /// problem.
    fn ensemble(
        &self,
        definition: Arc<Definition>,
        parts: ModelParts,
        around: Option<Arc<str>>,
    ) -> LocalBoxFuture<'static, Result<Arc<Model>, Vec<String>>>;
}

/// Opens models with their backends.
pub(crate) struct ModelOpener {
    /// Shared with the blocking threads that read it.
    pub(crate) settings: Arc<Settings>,
    /// Where models live.
    pub(crate) engines: Engines,
    /// Where steps of ensembles are measured.
    pub(crate) metrics: Metrics,
}

impl OpenModel for ModelOpener {
    fn single(
        &self,
        definition: Arc<Definition>,
        version: i64,
        place: ModelPlace,
    ) -> LocalBoxFuture<'static, Result<Arc<Model>>> {
        let (settings, engines) = (self.settings.clone(), self.engines.clone());
        let (metrics, begun) = (self.metrics.clone(), Instant::now());
        let (budget, cache) = (settings.backend.budget.clone(), settings.cache.clone());
        Box::pin(async move {
            let name = definition.name.clone();
            let read = definition.clone();
            let prepared = spawn_blocking(move || prepare(&settings, &read, version)).await;
            let PreparedVersion { config, executor, labels, backend, samples, fingerprint } =
                prepared.map_err(|_| {
                    Error::internal(format!("the backend of '{name}' panicked while it loaded"))
                })??;
            let parts = counted(parts(config, version), &metrics, cache.is_some());
            let answers = batcher::start(batcher::BatcherSetup {
                config: executor.config,
                states: executor.states,
                version,
                stats: parts.stats.clone(),
                health: parts.health.clone(),
                backend,
                engines,
                ensemble: place.ensemble,
            });
            let opened = answers.await?;
            drop(place.permit);
            warmup::single(&opened, &samples, &name, version).await?;
            let mut answers: Arc<dyn Infer> = opened;
            if definition.is_override {
                answers = Arc::new(KeepsFiles::new(answers, definition));
            }
            if let Some(cache) = &cache {
                answers = cache.in_front_of(&parts, fingerprint, answers);
            }
            parts.stats.loaded(begun.elapsed());
            let model = Model::new(parts, answers).with_fingerprint(fingerprint);
            Ok(Arc::new(model.with_labels(labels).with_share(&budget)))
        })
    }

    fn scale(
        &self,
        definition: Arc<Definition>,
        model: Arc<Model>,
    ) -> LocalBoxFuture<'static, Option<Result<()>>> {
        let (settings, version) = (self.settings.clone(), model.version);
        Box::pin(async move {
            let Content::Ensemble(config, _) = &definition.content else {
                let read = move || finished_config(&settings, &definition, version).map(Arc::new);
                return model.scale(spawn_blocking(read).await.ok()?.ok()?).await;
            };
            let steps = model.steps.iter().map(|step| step.config.clone()).collect();
            let config = completed_ensemble(settings, &definition, config.clone(), steps).await;
            model.scale(config.ok()?).await
        })
    }

    fn ensemble(
        &self,
        definition: Arc<Definition>,
        mut parts: ModelParts,
        around: Option<Arc<str>>,
    ) -> LocalBoxFuture<'static, Result<Arc<Model>, Vec<String>>> {
        let (settings, engines) = (self.settings.clone(), self.engines.clone());
        let (begun, budget) = (Instant::now(), settings.backend.budget.clone());
        let metrics = self.metrics.clone();
        Box::pin(async move {
            let steps = parts.steps.iter().map(|step| step.config.clone()).collect();
            parts.config =
                completed_ensemble(settings.clone(), &definition, parts.config, steps).await?;
            warn(&parts);
            let parts = counted(parts, &metrics, settings.cache.is_some());
            let setup = ensemble::EnsembleSetup {
                config: parts.config.clone(),
                stats: parts.stats.clone(),
                steps: parts.steps.clone(),
                engines,
                metrics,
                around,
            };
            let (config, model_dir) = (parts.config.clone(), definition.model_dir.clone());
            let own = spawn_blocking(move || labels::read(&definition.model_dir, &config)).await;
            let own = own.map_err(|_| Error::internal("reading labels panicked"));
            let own = own.and_then(|inner| inner).map_err(|error| vec![error.to_string()])?;
            let labels = ensemble::labels(&parts.config, own, &parts.steps);
            let mut answers: Arc<dyn Infer> = ensemble::start(setup).await?;
            warmup::ensemble(&*answers, &parts, model_dir).await?;
            let fingerprint = fingerprints::of_ensemble(&settings, &parts);
            if let Some(cache) = &settings.cache {
                answers = cache.in_front_of(&parts, fingerprint, answers);
            }
            parts.stats.loaded(begun.elapsed());
            let model = Model::new(parts, answers).with_fingerprint(fingerprint);
            Ok(Arc::new(model.with_labels(labels).with_share(&budget)))
        })
    }
}

/// The config of an ensemble with what the models it runs say of it.
pub(super) async fn completed_ensemble(
    settings: Arc<Settings>,
    definition: &Definition,
    mut config: Arc<ModelConfig>,
    steps: Vec<Arc<ModelConfig>>,
) -> Result<Arc<ModelConfig>, Vec<String>> {
    if let Some(file) = definition.pipeline.clone() {
        config = typed_pipeline(settings, file, config, steps.clone()).await?;
    }
    Ok(ensemble::completed(&config, steps.iter().map(|step| &**step)))
}

/// The config of a pipeline, with the types of the models it runs.
async fn typed_pipeline(
    settings: Arc<Settings>,
    file: PathBuf,
    untyped: Arc<ModelConfig>,
    steps: Vec<Arc<ModelConfig>>,
) -> Result<Arc<ModelConfig>, Vec<String>> {
    let steps = move || {
        let configs = steps.iter().map(|config| &**config);
        disk::pipeline::typed(&settings, &untyped, &file, configs)
    };
    let typed = spawn_blocking(steps).await;
    let typed = typed.map_err(|_| vec!["tracing the pipeline panicked".to_owned()])?;
    typed.map_err(|problems| problems.iter().map(config::Problem::message).collect())
}

/// A version that only has to be opened and warmed up.
struct PreparedVersion {
    config: Arc<ModelConfig>,
    executor: ExecutorParts,
    labels: OutputLabels,
    backend: Backend,
    samples: Vec<WarmupSample>,
    /// Only where servers share a response cache.
    fingerprint: Option<u128>,
}

/// What executors see of a model, where that is more than clients do.
struct ExecutorParts {
    config: Arc<ModelConfig>,
    /// What the server keeps for its sequences.
    states: Option<Arc<StateSet>>,
}

/// A model that counts from zero.
pub(crate) fn parts(config: Arc<ModelConfig>, version: i64) -> ModelParts {
    let (stats, health) = (Arc::<Statistics>::default(), Arc::<Health>::default());
    ModelParts { config, version, stats, health, steps: Vec::new() }
}

/// The same, counting what the command line and the config ask for.
fn counted(parts: ModelParts, metrics: &Metrics, has_cache: bool) -> ModelParts {
    let config = &parts.config;
    let is_cached = has_cache && config.response_cache.is_some();
    let bounds = config.first_response_bounds.as_deref();
    let (is_decoupled, has_sequences) = (config.decoupled, config.sequences().is_some());
    let traits = CountedTraits { is_decoupled, is_cached, has_sequences };
    let stats = metrics.statistics(bounds, traits);
    ModelParts { stats, ..parts }
}

/// The finished config of one version, what opens it and what warms it up. Blocks.
fn prepare(settings: &Settings, definition: &Definition, version: i64) -> Result<PreparedVersion> {
    let config = finished_config(settings, definition, version)?;
    let kind = settings.backends.find(&config.backend);
    let kind = kind.ok_or_else(|| unknown_backend(&config.backend))?;
    let files = files_of(definition, version);
    let labels = labels::read(&definition.model_dir, &config)?;
    let config = Arc::new(config);
    let executor = executor_parts(settings, &config, &definition.model_dir)?;
    let samples = disk::warmup::samples(&executor.config, &definition.model_dir);
    let samples = samples.map_err(invalid)?;
    let misnamed = [
        disk::definition::misnamed_config(settings, &definition.model_dir),
        disk::misnamed::misnamed_version(&definition.model_dir),
    ];
    misnamed.iter().flatten().for_each(|warning| tracing::warn!("{warning}"));
    let warnings = nothing_to_ask(&config).into_iter().chain(scheduling_warnings(&config));
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    let backend = kind.prepare(&settings.backend, &files, executor.config.clone())?;
    if config.decoupled && matches!(backend, Backend::Local(_)) {
        return Err(Error::unsupported(format!(
            "model '{}' is decoupled, which only Python models can be: backend '{}' answers once",
            config.name, config.backend
        )));
    }
    let fingerprint = fingerprints::of_version(settings, &config, &files);
    Ok(PreparedVersion { config, executor, labels, backend, samples, fingerprint })
}

/// Reads what sequences begin with. Blocks.
fn executor_parts(
    settings: &Settings,
    config: &Arc<ModelConfig>,
    model_dir: &Path,
) -> Result<ExecutorParts> {
    let config = config.for_executor().map_or_else(|| config.clone(), Arc::new);
    let initial = disk::initial_state::read(&config, model_dir).map_err(invalid)?;
    let states = StateSet::new(&config, initial, &settings.backend.budget)?;
    Ok(ExecutorParts { config, states })
}

/// The config of a model that is no ensemble, completed by its backend, which may run its code.
/// Blocks.
pub(crate) fn finished_config(
    settings: &Settings,
    definition: &Definition,
    version: i64,
) -> Result<ModelConfig> {
    let Content::Single(draft) = &definition.content else {
        return Err(Error::internal(format!("'{}' is an ensemble", definition.name)));
    };
    let mut draft = Draft::clone(draft);
    let kind = settings.backends.find(&draft.proto.backend);
    if let (Some(kind), true) = (&kind, settings.auto_complete) {
        let (files, written) = (files_of(definition, version), json::print(&draft.proto));
        if let Some(completed) = kind.complete(&settings.backend, &files, &written)? {
            merge(&mut draft, &completed)?;
        }
    }
    draft.finish(&settings.config).map_err(invalid)
}

/// Where the backend finds a version.
pub(crate) fn files_of(definition: &Definition, version: i64) -> ModelFiles {
    let (name, model_dir) = (definition.name.to_string(), definition.model_dir.clone());
    ModelFiles { name, model_dir, version }
}

/// Says what of an ensemble can hardly be meant.
fn warn(parts: &ModelParts) {
    let Some(steps) = &parts.config.ensemble else { return };
    let models: Vec<_> = parts.steps.iter().map(|step| Some(&*step.config)).collect();
    let warnings = ensemble::warnings(&parts.config, steps, &models);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
}

/// A config without inputs and outputs: no request can name one.
pub(crate) fn nothing_to_ask(config: &ModelConfig) -> Option<config::Problem> {
    let is_python = config.backend == "python";
    let or = match is_python {
        true => ", or have model.py say them: by type hints, or by `auto_complete_config`",
        false => "",
    };
    (config.inputs.is_empty() && config.outputs.is_empty()).then(|| {
        let text = format!(
            "model '{}' has no inputs and no outputs, so every request to it fails. Write them into \
             its config.pbtxt, like input [ {{ name: \"x\" data_type: TYPE_FP32 dims: [ -1 ] }} ] and \
             output [ {{ name: \"y\" data_type: TYPE_FP32 dims: [ -1 ] }} ]{or}",
            config.name
        );
        config.source_map.problem("", text)
    })
}

fn invalid(problems: Vec<config::Problem>) -> Error {
    Error::invalid(config::join_messages(&problems))
}

/// Takes over what a backend may fill in, and nothing else.
pub(crate) fn merge(draft: &mut Draft, completed: &str) -> Result<()> {
    let model = &draft.proto.name;
    let wrong = |problems: Vec<config::Problem>| {
        let texts = config::join_texts(problems.into_iter().map(|it| it.text));
        Error::internal(format!("the backend completed '{model}' wrongly: {texts}"))
    };
    let found = config::read_json(completed, "the completed config").map_err(wrong)?;
    let found = found.proto;
    draft.proto.input = found.input;
    draft.proto.output = found.output;
    draft.proto.max_batch_size = found.max_batch_size;
    draft.proto.model_transaction_policy = found.model_transaction_policy;
    if let Some(SchedulingChoice::DynamicBatching(_)) = found.scheduling_choice {
        draft.proto.scheduling_choice = found.scheduling_choice;
    }
    if draft.proto.instance_group.is_empty() {
        draft.proto.instance_group = found.instance_group;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_fills_in_tensors_and_batching_and_nothing_else() {
        let mut draft = config::read_text("name: \"m\" backend: \"python\"", "config").unwrap();
        let completed = r#"{"name": "other", "backend": "native", "max_batch_size": 4,
            "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": ["4"]}],
            "dynamic_batching": {}, "model_transaction_policy": {"decoupled": true}}"#;
        merge(&mut draft, completed).unwrap();
        let proto = &draft.proto;
        assert_eq!((&*proto.name, &*proto.backend, proto.max_batch_size), ("m", "python", 4));
        assert_eq!((proto.input.len(), proto.output.len()), (1, 0));
        assert!(proto.model_transaction_policy.as_ref().is_some_and(|it| it.decoupled));
        assert!(matches!(proto.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
        let error = merge(&mut draft, "{").unwrap_err().to_string();
        assert!(error.starts_with("the backend completed 'm' wrongly: "), "{error}");
    }
}
