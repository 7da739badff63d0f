//! Fills in the defaults, so that nobody after this needs to know them.

use super::backend;
use super::backend_traits::BackendTraits;
use super::features::ServerFeatures;
use troupe_proto::inference::model_config::SchedulingChoice;
use troupe_proto::inference::model_instance_group::Kind;
use troupe_proto::inference::model_optimization_policy::PinnedMemoryBuffer;
use troupe_proto::inference::model_sequence_batching::StrategyChoice;
use troupe_proto::inference::model_version_policy::{Latest, PolicyChoice};
use troupe_proto::inference::{
    ModelConfig, ModelInstanceGroup, ModelSequenceBatching, ModelVersionPolicy,
};

/// How long a sequence may be without requests, as Triton has it.
const MAX_SEQUENCE_IDLE_MICROSECONDS: u64 = 1_000_000;

/// What an instance group left open.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenInGroup {
    pub(super) kind: bool,
    pub(super) count: bool,
}

/// Fills in what was left open; what was written stays. Returns, for each instance group, what
/// was open there.
pub(super) fn normalise(config: &mut ModelConfig, features: &ServerFeatures) -> Vec<OpenInGroup> {
    backend::fill(config);
    let policy = config.version_policy.get_or_insert_default();
    if *policy == ModelVersionPolicy::default() {
        policy.policy_choice = Some(PolicyChoice::Latest(Latest { num_versions: 1 }));
    }
    let max_batch_size = config.max_batch_size;
    match &mut config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            // Shown, as Triton shows it; what it says follows from the steps, once they are known.
            config.model_transaction_policy.get_or_insert_default();
            for step in &mut ensemble.step {
                // Versions start at 1, so 0 was not written.
                if step.model_version == 0 {
                    step.model_version = -1;
                }
            }
        }
        Some(SchedulingChoice::DynamicBatching(batching))
            if batching.preferred_batch_size.is_empty() && max_batch_size > 0 =>
        {
            batching.preferred_batch_size.push(max_batch_size);
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => sequences(batching, max_batch_size),
        _ => {}
    }
    if config.platform == backend::ENSEMBLE {
        return Vec::new();
    }
    let optimization = config.optimization.get_or_insert_default();
    optimization.input_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    optimization.output_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    instance_groups(config, features)
}

fn sequences(batching: &mut ModelSequenceBatching, max_batch_size: i32) {
    if batching.max_sequence_idle_microseconds == 0 {
        batching.max_sequence_idle_microseconds = MAX_SEQUENCE_IDLE_MICROSECONDS;
    }
    if let Some(StrategyChoice::Oldest(oldest)) = &mut batching.strategy_choice
        && oldest.preferred_batch_size.is_empty()
        && max_batch_size > 0
    {
        oldest.preferred_batch_size.push(max_batch_size);
    }
}

fn instance_groups(config: &mut ModelConfig, features: &ServerFeatures) -> Vec<OpenInGroup> {
    let traits = BackendTraits::of(&config.backend);
    let gpus = || if traits.can_use_gpus { (features.gpus)().unwrap_or_default() } else { &[] };
    let mut open = Vec::new();
    if config.instance_group.is_empty() {
        let name = config.name.clone();
        config.instance_group.push(ModelInstanceGroup { name, ..Default::default() });
    }
    for (index, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", config.name);
        }
        let least = group.scaling.as_ref().map(|it| it.min_count.unwrap_or(1));
        if let (Some(least), 0) = (least, group.count) {
            // Too many are a problem of their own.
            group.count = i32::try_from(least).unwrap_or(i32::MAX);
        }
        let found = OpenInGroup { kind: group.kind() == Kind::Auto, count: group.count == 0 };
        open.push(found);
        if found.kind {
            let gpus = gpus();
            let usable = !gpus.is_empty() && group.gpus.iter().all(|gpu| gpus.contains(gpu));
            group.set_kind(if usable { Kind::Gpu } else { Kind::Cpu });
        }
        if group.kind() == Kind::Gpu && group.gpus.is_empty() {
            group.gpus = gpus().to_vec();
        }
        if found.count {
            let is_on_cpu = group.kind() == Kind::Cpu;
            group.count = if is_on_cpu { traits.default_cpu_count } else { 1 };
        }
    }
    open
}
