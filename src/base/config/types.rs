//! The checked configuration of a model: the types that the rest of the server relies on.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{priorities::PriorityLevels, problem::SourceMap, sequence::SequenceBatching};
use crate::tensor::DataType;
use troupe_proto::inference;

/// What a model promises and how it is run; every question it answers is settled.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    pub name: Arc<str>,
    pub platform: String,
    pub backend: String,
    /// 0: the model does not batch, and `dims` are the whole shape.
    pub max_batch_size: u32,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    /// Computed when a batch is formed; no client sends them.
    pub batch_inputs: Vec<BatchInput>,
    pub version_policy: VersionPolicy,
    /// Empty for an ensemble.
    pub instance_groups: Vec<InstanceGroup>,
    pub batching: Batching,
    pub parameters: BTreeMap<String, String>,
    pub default_model_filename: String,
    pub ensemble: Option<EnsembleConfig>,
    /// Run before the model is called ready.
    pub warmup: Vec<Warmup>,
    pub decoupled: bool,
    pub metric_tags: BTreeMap<String, String>,
    /// `model_metrics`: bounds of the histogram of the time to the first response, in milliseconds.
    pub first_response_bounds: Option<Vec<f64>>,
    /// `response_cache`: its answers are kept, if the server has a cache.
    pub response_cache: Option<ResponseCachePolicy>,
    /// Where each field stood, for problems found later.
    pub source_map: SourceMap,
    /// The same in protobuf, with the defaults filled in: what clients see.
    pub proto: inference::ModelConfig,
}

/// A tensor the model reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    pub name: Arc<str>,
    pub dtype: DataType,
    /// -1: any size; without the batch dimension.
    pub dims: Vec<i64>,
    /// The shape the model itself sees, when it differs from `dims`.
    pub reshape: Option<Vec<i64>>,
    pub optional: bool,
    /// `allow_ragged_batch`: requests of different shapes run together, and an executor sees all
    /// their elements in one dimension.
    pub ragged: bool,
}

/// A tensor the model writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub name: Arc<str>,
    pub dtype: DataType,
    /// -1: any size; without the batch dimension.
    pub dims: Vec<i64>,
    /// The shape the model itself writes, when it differs from `dims`.
    pub reshape: Option<Vec<i64>>,
    /// Relative to the model's directory, and inside it; empty: no labels.
    pub label_filename: String,
    /// `BATCH_SCATTER_WITH_INPUT_SHAPE`: the position of the input whose shape each request's part
    /// has; the executor writes the parts behind each other, without a batch dimension.
    pub scatter: Option<usize>,
}

/// Tensors that say how a batch is made up.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchInput {
    pub kind: BatchInputKind,
    /// What the model calls them; all have the same contents.
    pub names: Vec<Arc<str>>,
    /// INT32 or FP32.
    pub dtype: DataType,
    /// The position of the input that is looked at.
    pub source: usize,
}

/// What a batch input tells of its source, in Triton's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchInputKind {
    /// Elements of each request.
    ElementCount,
    /// Where the elements of each request end.
    AccumulatedElementCount,
    /// The same, 0 before them.
    AccumulatedElementCountWithZero,
    /// As many elements as the largest request has, their values without meaning.
    MaxElementCountAsShape,
    /// The shape of each row, the batch left out: `[rows, dimensions]`.
    ItemShape,
    /// The same in one dimension.
    ItemShapeFlatten,
}

/// Which of the versions present are served.
#[derive(Clone, Debug, PartialEq)]
pub enum VersionPolicy {
    /// The N highest versions.
    Latest(u32),
    All,
    Specific(Vec<i64>),
}

/// Executors of the model that share one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceGroup {
    pub name: String,
    pub count: u32,
    /// The config does not say how many: the server chose `count`, and may start more.
    pub is_default_count: bool,
    pub kind: InstanceKind,
    /// The server chose the kind: a GPU that the backend cannot use becomes the CPU.
    pub is_auto: bool,
    /// `count` instances on each; empty unless the kind is `Gpu`.
    pub gpus: Vec<i32>,
    /// Loaded, but given no requests.
    pub passive: bool,
    /// Looked at where the server limits rates.
    pub rate_limits: RateLimits,
    /// How many there are follows from how long requests wait; `count` is where it begins.
    pub scaling: Option<InstanceScaling>,
}

/// `scaling`: between which numbers, and when, instances are added and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceScaling {
    /// On each device, at least one.
    pub min: u32,
    /// On each device, not below `min`.
    pub max: u32,
    /// Instances are added while requests wait longer than this on average.
    pub target_queue: Duration,
    /// How long that has to last.
    pub up_after: Duration,
    /// Instances go when fewer would have done for so long.
    pub down_after: Duration,
}

/// `rate_limiter`: what each execution of an instance needs of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    pub resources: Vec<RateResource>,
    /// An instance with twice the number has half the turns; 0 counts as 1.
    pub priority: u32,
}

/// So much of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateResource {
    pub name: Arc<str>,
    /// It is one of the server; else each device has its own.
    pub global: bool,
    pub count: u32,
}

/// Where an instance runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    Cpu,
    Gpu,
    /// The model decides.
    Model,
}

/// Which requests may be executed together.
///
/// A new scheduler is a variant here, read in `check/scheduling.rs`, and a file in the engine's
/// `batcher/scheduler`, with an arm in `for_config` there.
#[derive(Clone, Debug, PartialEq)]
pub enum Batching {
    /// Each request alone.
    Direct,
    Dynamic(DynamicBatching),
    /// Requests of one sequence go to one instance, in their order.
    Sequence(SequenceBatching),
}

/// When a batch is complete.
#[derive(Clone, Debug, PartialEq)]
pub struct DynamicBatching {
    pub preferred: Vec<u32>,
    pub max_queue_delay: Duration,
    pub preserve_ordering: bool,
    pub queues: PriorityLevels,
}

/// How answers of a model are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseCachePolicy {
    /// How long; `None`: until there is no room.
    pub ttl: Option<Duration>,
    /// Bytes that all of them may take; `None`: the whole cache.
    pub max_bytes: Option<u64>,
}

/// The models an ensemble runs.
#[derive(Clone, Debug, PartialEq)]
pub struct EnsembleConfig {
    pub steps: Vec<StepConfig>,
    /// Requests of each step in flight, those of all clients together; 0: no limit.
    pub max_inflight_requests: u32,
}

/// One model run by an ensemble; its maps are in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct StepConfig {
    pub model: String,
    /// -1: the latest.
    pub version: i64,
    /// Input of the model, ensemble tensor it reads.
    pub inputs: Vec<(String, String)>,
    /// Output of the model, ensemble tensor it writes.
    pub outputs: Vec<(String, String)>,
}

/// A request run before the model is called ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Warmup {
    pub name: String,
    /// Rows of one execution; 0: the sample is skipped, and its inputs are not read.
    pub batch_size: u32,
    /// Executions, at least one.
    pub count: u32,
    pub inputs: Vec<WarmupInput>,
}

/// One input of a warm-up request; whether the model has such an input is not known here.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmupInput {
    pub name: String,
    pub dtype: DataType,
    /// Without the batch dimension.
    pub dims: Vec<i64>,
    pub data: WarmupData,
}

/// What a warm-up input holds.
#[derive(Clone, Debug, PartialEq)]
pub enum WarmupData {
    Zero,
    Random,
    /// Relative to the folder `warmup` in the model's directory, and inside it.
    File(String),
}

impl InstanceGroup {
    /// How many devices have `count` instances each: its GPUs, or whatever else it runs on, as one.
    pub fn devices(&self) -> usize {
        self.gpus.len().max(1)
    }
}

impl ModelConfig {
    /// Answers by running other models.
    pub fn is_ensemble(&self) -> bool {
        self.ensemble.is_some()
    }

    /// How many instances it begins with, of all groups that are given work.
    pub fn instances(&self) -> usize {
        let groups = self.instance_groups.iter().filter(|it| !it.passive);
        groups.map(|it| it.count as usize * it.devices()).sum()
    }

    /// The same with another `model_transaction_policy.decoupled`, also as clients see it.
    pub fn with_decoupled(&self, decoupled: bool) -> ModelConfig {
        let mut config = self.clone();
        config.decoupled = decoupled;
        let policy = inference::ModelTransactionPolicy { decoupled };
        config.proto.model_transaction_policy = Some(policy);
        config
    }

    /// The position of an input in `inputs`.
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|input| &*input.name == name)
    }

    /// The position of an output in `outputs`.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|output| &*output.name == name)
    }

    /// The shape clients see, with the batch dimension when the model batches.
    pub fn full_dims(&self, input: &Input) -> Vec<i64> {
        self.with_batch(&input.dims)
    }

    /// The tensors an executor is given, in order: the inputs, then the batch inputs.
    pub fn executor_inputs(&self) -> impl Iterator<Item = (&Arc<str>, DataType)> {
        let computed = self
            .batch_inputs
            .iter()
            .flat_map(|input| input.names.iter().map(|name| (name, input.dtype)));
        self.inputs.iter().map(|input| (&input.name, input.dtype)).chain(computed)
    }

    /// An executor sees other tensors than the requests have.
    pub fn has_batch_io(&self) -> bool {
        !self.batch_inputs.is_empty()
            || self.inputs.iter().any(|it| it.ragged)
            || self.outputs.iter().any(|it| it.scatter.is_some())
    }

    /// Puts -1 before `dims` when the model batches.
    pub fn with_batch(&self, dims: &[i64]) -> Vec<i64> {
        let batch = (self.max_batch_size > 0).then_some(-1);
        batch.into_iter().chain(dims.iter().copied()).collect()
    }
}
