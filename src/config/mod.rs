//! Placeholder of the config room until it lands.
use crate::tensor::DataType;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
#[derive(Clone, Debug, Default)]
pub struct ModelConfig {
    pub name: Arc<str>,
    pub platform: String,
    pub backend: String,
    pub max_batch_size: u32,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    pub batching: Batching,
    pub parameters: BTreeMap<String, String>,
    pub default_model_filename: String,
    pub instance_groups: Vec<InstanceGroup>,
    pub ensemble: Option<EnsembleConfig>,
    pub decoupled: bool,
}
#[derive(Clone, Debug)]
pub struct Input {
    pub name: Arc<str>,
    pub dtype: DataType,
    pub dims: Vec<i64>,
    pub reshape: Option<Vec<i64>>,
    pub optional: bool,
}
#[derive(Clone, Debug)]
pub struct Output {
    pub name: Arc<str>,
    pub dtype: DataType,
    pub dims: Vec<i64>,
    pub reshape: Option<Vec<i64>>,
    pub label_filename: String,
}
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceKind {
    Cpu,
    Gpu,
    Model,
}
#[derive(Clone, Debug)]
pub struct InstanceGroup {
    pub name: String,
    pub count: u32,
    pub kind: InstanceKind,
    pub gpus: Vec<i32>,
    pub passive: bool,
}
#[derive(Clone, Debug, Default)]
pub enum Batching {
    #[default]
    Direct,
    Dynamic(DynamicBatching),
}
#[derive(Clone, Debug)]
pub struct DynamicBatching {
    pub preferred: Vec<u32>,
    pub max_queue_delay: Duration,
    pub preserve_ordering: bool,
}
#[derive(Clone, Debug)]
pub struct EnsembleConfig {
    pub steps: Vec<StepConfig>,
    pub max_inflight_requests: u32,
}
#[derive(Clone, Debug)]
pub struct StepConfig {
    pub model: String,
    pub version: i64,
    pub inputs: Vec<(String, String)>,
    pub outputs: Vec<(String, String)>,
}
impl ModelConfig {
    pub fn is_ensemble(&self) -> bool {
        self.ensemble.is_some()
    }
}
