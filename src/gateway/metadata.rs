//! What the server says about itself and its models, the same in every protocol.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::ServerState;
use troupe_base::{
    config::{Input, ModelConfig, Output},
    error::{Error, ErrorKind, Result},
    model::Model,
    statistics::{BatchTotal, DurationTotal, ResponseTotal, Responses, Statistics, Totals},
};
use troupe_repository::{ModelEntry, VersionEntry, VersionState};

/// The release of Triton whose behaviour this server follows: clients look at the major number.
pub const VERSION: &str = "2.73.0";

/// What of the protocol is served.
pub const EXTENSIONS: &[&str] = &[
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
    "trace",
];

/// What `GET /v2` answers.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct ServerMetadata {
    pub name: String,
    pub version: &'static str,
    pub extensions: &'static [&'static str],
}

/// Describes the server.
pub fn server(state: &ServerState) -> ServerMetadata {
    ServerMetadata {
        name: state.settings.server_id.clone(),
        version: VERSION,
        extensions: EXTENSIONS,
    }
}

/// A model's interface.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct ModelMetadata {
    pub name: String,
    pub versions: Vec<String>,
    pub platform: String,
    pub inputs: Vec<TensorMetadata>,
    pub outputs: Vec<TensorMetadata>,
}

/// One input or output.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct TensorMetadata {
    pub name: String,
    pub datatype: &'static str,
    pub shape: Vec<i64>,
}

/// Describes a model: all its ready versions, or the one asked for.
pub fn model(state: &ServerState, name: &str, version: Option<i64>) -> Result<ModelMetadata> {
    let catalog = state.repository.catalog.load();
    let model = state.model_of(&catalog, name, version)?;
    let versions = match version {
        Some(number) => vec![number.to_string()],
        None => catalog.versions(name).iter().map(|it| it.version.to_string()).collect(),
    };
    let config = &model.config;
    Ok(ModelMetadata {
        name: config.name.to_string(),
        versions,
        platform: platform(config).to_owned(),
        inputs: config.inputs.iter().map(|it| input(config, it)).collect(),
        outputs: config.outputs.iter().map(|it| output(config, it)).collect(),
    })
}

pub(crate) fn input(config: &ModelConfig, it: &Input) -> TensorMetadata {
    let shape = with_batch(config, &it.dims);
    TensorMetadata { name: it.name.to_string(), datatype: it.dtype.as_str(), shape }
}

pub(crate) fn output(config: &ModelConfig, it: &Output) -> TensorMetadata {
    let shape = with_batch(config, &it.dims);
    TensorMetadata { name: it.name.to_string(), datatype: it.dtype.as_str(), shape }
}

fn with_batch(config: &ModelConfig, dims: &[i64]) -> Vec<i64> {
    let batch = (0 < config.max_batch_size).then_some(-1);
    batch.into_iter().chain(dims.iter().copied()).collect()
}

/// One model in the list of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are those of metadata and index")]
pub struct ModelSummary {
    pub name: String,
    /// The ready ones.
    pub versions: Vec<String>,
    /// `READY` if a version is; `UNKNOWN` if nobody tried to load it.
    pub state: &'static str,
    /// What runs it; empty unless a version is ready.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub platform: String,
    /// Why versions are not ready, or ready and cannot run, each on a line.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Every model of the repository, also those that did not load.
pub fn models(state: &ServerState) -> Vec<ModelSummary> {
    let catalog = state.repository.catalog.load();
    catalog.entries.iter().map(|(name, entry)| summary(name, entry)).collect()
}

fn summary(name: &Arc<str>, entry: &ModelEntry) -> ModelSummary {
    let versions = || entry.versions.values();
    let has = |state| versions().any(|it| it.state == state);
    let states = [
        VersionState::Ready,
        VersionState::Loading,
        VersionState::Unloading,
        VersionState::Unavailable,
    ];
    let state = match states.into_iter().find(|it| has(*it)) {
        Some(state) => state,
        None if entry.reason.is_empty() => VersionState::Unknown,
        None => VersionState::Unavailable,
    };
    let ready = || entry.versions.iter().filter(|it| it.1.model.is_some());
    let model = ready().next_back().and_then(|(_, it)| it.model.as_ref());
    let reasons = versions().map(VersionEntry::told).chain([entry.reason.clone()]);
    let reasons: Vec<String> = reasons.filter(|it| !it.is_empty()).collect();
    ModelSummary {
        name: name.to_string(),
        versions: ready().map(|(number, _)| number.to_string()).collect(),
        state: state.as_str(),
        platform: model.map(|it| platform(&it.config).to_owned()).unwrap_or_default(),
        reason: reasons.join("\n"),
    }
}

/// What runs a model, as metadata names it.
pub(crate) fn platform(config: &ModelConfig) -> &str {
    if config.platform.is_empty() { &config.backend } else { &config.platform }
}

/// One line of the repository index.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct IndexEntry {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub state: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Every model of the repository, or only the ready ones.
pub fn index(state: &ServerState, only_ready: bool) -> Result<Vec<IndexEntry>> {
    state.lifecycle.check_serving()?;
    let catalog = state.repository.catalog.load();
    let lines = catalog.entries.iter().flat_map(|(name, entry)| index_of(name, entry));
    let ready = VersionState::Ready.as_str();
    Ok(lines.filter(|it| !only_ready || it.state == ready).collect())
}

fn index_of(name: &Arc<str>, entry: &ModelEntry) -> Vec<IndexEntry> {
    if entry.versions.is_empty() {
        let state = if entry.reason.is_empty() { "" } else { VersionState::Unavailable.as_str() };
        let reason = entry.reason.clone();
        return vec![IndexEntry { name: name.to_string(), version: String::new(), state, reason }];
    }
    let versions = entry.versions.iter();
    let line = |(number, version): (&i64, &VersionEntry)| IndexEntry {
        name: name.to_string(),
        version: number.to_string(),
        state: version.state.as_str(),
        reason: version.told(),
    };
    versions.map(line).collect()
}

/// How often and how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct Duration {
    pub count: u64,
    pub ns: u64,
}

impl From<DurationTotal> for Duration {
    fn from(DurationTotal { count, ns }: DurationTotal) -> Duration {
        Duration { count, ns }
    }
}

/// Where the time of requests went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct InferStatistics {
    pub success: Duration,
    pub fail: Duration,
    pub queue: Duration,
    pub compute_input: Duration,
    pub compute_infer: Duration,
    pub compute_output: Duration,
    pub cache_hit: Duration,
    pub cache_miss: Duration,
}

/// Executions of one batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct BatchStatistics {
    pub batch_size: u64,
    pub compute_input: Duration,
    pub compute_infer: Duration,
    pub compute_output: Duration,
}

/// Responses of one position, of a model that may give any number of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct ResponseStatistics {
    pub compute_infer: Duration,
    pub compute_output: Duration,
    pub success: Duration,
    pub fail: Duration,
    pub empty_response: Duration,
    pub cancel: Duration,
}

/// Memory a model says it uses; no backend of ours knows.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct MemoryUsage {
    pub r#type: String,
    pub id: i64,
    pub byte_size: u64,
}

/// Everything counted about one version of a model.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub struct ModelStatistics {
    pub name: String,
    pub version: String,
    pub last_inference: u64,
    pub inference_count: u64,
    pub execution_count: u64,
    pub inference_stats: InferStatistics,
    /// By position: the first response to a request comes first.
    #[serde(serialize_with = "by_position")]
    pub response_stats: Vec<ResponseStatistics>,
    pub batch_stats: Vec<BatchStatistics>,
    pub memory_usage: Vec<MemoryUsage>,
}

/// The protocol has an object where we have a list.
fn by_position<S: Serializer>(
    all: &[ResponseStatistics],
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    to.collect_map(all.iter().enumerate().map(|(index, it)| (index.to_string(), it)))
}

/// Statistics of all ready models (`""`), of a model's ready versions, or of one version.
pub fn statistics(
    state: &ServerState,
    name: &str,
    version: Option<i64>,
) -> Result<Vec<ModelStatistics>> {
    let catalog = state.repository.catalog.load();
    if name.is_empty() {
        return Ok(catalog.ready_models().map(|it| statistics_of(it)).collect());
    }
    let versions = catalog.versions(name);
    if versions.is_empty() {
        let why = match catalog.entries.get(name) {
            Some(entry) => entry.why_not(),
            None => state.guess(&catalog, name),
        };
        return Err(Error::invalid(format!("requested model '{name}' is not available{why}")));
    }
    let chosen = versions.iter().filter(|it| version.is_none_or(|number| number == it.version));
    let found: Vec<_> = chosen.map(|it| statistics_of(it)).collect();
    if found.is_empty() {
        return Err(Error::invalid(format!(
            "requested model version is not available for model '{name}'"
        )));
    }
    Ok(found)
}

fn statistics_of(model: &Model) -> ModelStatistics {
    let stats = &*model.stats;
    let totals = stats.totals();
    ModelStatistics {
        name: model.name().to_string(),
        version: model.version.to_string(),
        last_inference: stats.last_inference(),
        inference_count: totals.inference_count,
        execution_count: totals.execution_count,
        inference_stats: infer_statistics(&totals, stats),
        response_stats: stats.extra.responses.iter().flat_map(response_statistics).collect(),
        memory_usage: Vec::new(),
        batch_stats: totals
            .batches
            .into_iter()
            .map(|(rows, total)| batch_statistics(rows, total))
            .collect(),
    }
}

fn infer_statistics(totals: &Totals, stats: &Statistics) -> InferStatistics {
    let cache = stats.extra.cache.as_ref();
    let (hit, miss) = cache.map(|it| (it.hits(), it.misses())).unwrap_or_default();
    InferStatistics {
        success: totals.success.into(),
        fail: stats.fail().into(),
        queue: totals.queue.into(),
        compute_input: totals.compute_input.into(),
        compute_infer: totals.compute_infer.into(),
        compute_output: totals.compute_output.into(),
        cache_hit: hit.into(),
        cache_miss: miss.into(),
    }
}

fn response_statistics(responses: &Responses) -> Vec<ResponseStatistics> {
    let response = |it: ResponseTotal| ResponseStatistics {
        compute_infer: it.compute_infer.into(),
        compute_output: it.compute_output.into(),
        success: it.success.into(),
        fail: it.fail.into(),
        empty_response: it.empty_response.into(),
        cancel: it.cancel.into(),
    };
    responses.totals().into_iter().map(response).collect()
}

fn batch_statistics(rows: u32, total: BatchTotal) -> BatchStatistics {
    let of = |ns| Duration { count: total.count, ns };
    BatchStatistics {
        batch_size: u64::from(rows),
        compute_input: of(total.compute_input_ns),
        compute_infer: of(total.compute_infer_ns),
        compute_output: of(total.compute_output_ns),
    }
}

/// Is a model ready, by its instances and by its own code? Unknown ones are an error.
pub async fn is_model_ready(state: &ServerState, name: &str, version: Option<i64>) -> Result<bool> {
    state.lifecycle.check_serving()?;
    match state.model(name, version) {
        Ok(model) => Ok(model.check_ready().await),
        Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Crashed) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
