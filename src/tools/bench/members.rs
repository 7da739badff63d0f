//! The models that answer a request: the one asked, the steps of an ensemble, whoever they call.

use std::collections::{BTreeMap, VecDeque};

use super::{
    batch_cost::BatchCost,
    counts::{Counts, ModelKey},
    member_scheduling::{MemberSequences, QueueLimits},
    request::is_decoupled,
    server::ServerClient,
};
use troupe_proto::inference::{
    ModelConfig, model_config::SchedulingChoice, model_instance_group::Kind,
};

/// More composing models than this are an error: an ensemble would not have them.
const MAX_MEMBERS: usize = 1000;

/// One model that takes part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Member {
    pub(super) key: ModelKey,
    /// Executions it can do at once; 0 for an ensemble, which executes nothing.
    pub(super) instances: u64,
    /// Rows of an execution; 0 if it takes no batches.
    pub(super) max_batch: u64,
    /// It joins requests.
    pub(super) has_batching: bool,
    /// It answers a request as often as it likes, and may do so after its execution has ended.
    pub(super) is_decoupled: bool,
    /// What keeps the requests of a sequence together.
    pub(super) sequences: Option<MemberSequences>,
    /// How long, and how many, requests may wait.
    pub(super) queues: QueueLimits,
    /// Its `execute` gets a list of requests, which it has to join itself.
    pub(super) is_python: bool,
    /// What larger executions cost, where that was measured.
    pub(super) batch_cost: Option<BatchCost>,
    /// No step of the ensemble: a Python model calls it, or another client.
    pub(super) is_called: bool,
}

impl Member {
    fn new(key: ModelKey, config: &ModelConfig) -> Member {
        let ensemble =
            matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
        let groups = config.instance_group.iter().filter(|it| !it.passive && !ensemble);
        let instances = groups.map(|it| {
            let devices = if it.kind() == Kind::Gpu { it.gpus.len().max(1) } else { 1 };
            // There are so many by the time that it is busy.
            let most = it.scaling.as_ref().map_or(0, |it| u64::from(it.max_count));
            most.max(it.count.max(1) as u64) * devices as u64
        });
        Member {
            key,
            instances: instances.sum(),
            max_batch: config.max_batch_size.max(0) as u64,
            has_batching: matches!(
                config.scheduling_choice,
                Some(SchedulingChoice::DynamicBatching(_) | SchedulingChoice::SequenceBatching(_))
            ),
            is_decoupled: is_decoupled(config),
            sequences: MemberSequences::of(config),
            queues: QueueLimits::of(config),
            is_python: config.backend == "python",
            batch_cost: None,
            is_called: false,
        }
    }
}

/// The model itself, and the steps below it.
pub(super) async fn members(
    server: &mut ServerClient,
    name: &str,
    version: &str,
    known: &BTreeMap<ModelKey, Counts>,
) -> Result<Vec<Member>, String> {
    let mut members: Vec<Member> = Vec::new();
    let mut open = VecDeque::from([(name.to_owned(), version.to_owned())]);
    while let Some((name, version)) = open.pop_front() {
        let key = ModelKey { version: resolved(&name, &version, known), name };
        if members.iter().any(|it| it.key == key) {
            continue;
        }
        if members.len() == MAX_MEMBERS {
            return Err(format!("more than {MAX_MEMBERS} models take part"));
        }
        let config = server.config(&key.name, &version).await?;
        if let Some(SchedulingChoice::EnsembleScheduling(it)) = &config.scheduling_choice {
            open.extend(it.step.iter().map(|it| {
                let version = (0 < it.model_version).then(|| it.model_version.to_string());
                (it.model_name.clone(), version.unwrap_or_default())
            }));
        }
        members.push(Member::new(key, &config));
    }
    Ok(members)
}

/// Another model that was at work.
pub(super) async fn called(server: &mut ServerClient, key: &ModelKey) -> Result<Member, String> {
    let config = server.config(&key.name, &key.version).await?;
    Ok(Member { is_called: true, ..Member::new(key.clone(), &config) })
}

/// The latest version is the largest number that counts.
fn resolved(name: &str, version: &str, known: &BTreeMap<ModelKey, Counts>) -> String {
    if !version.is_empty() {
        return version.to_owned();
    }
    let versions = known.keys().filter(|it| it.name == name).map(|it| &it.version);
    versions.max_by_key(|it| it.parse::<i64>().ok()).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_proto::inference::ModelInstanceGroup;

    #[test]
    fn the_latest_version_is_the_largest_number() {
        let key =
            |name: &str, version: &str| ModelKey { name: name.into(), version: version.into() };
        let known = [key("m", "2"), key("m", "10"), key("n", "30")];
        let known = known.into_iter().map(|it| (it, Counts::default())).collect();
        assert_eq!(resolved("m", "", &known), "10");
        assert_eq!(resolved("m", "2", &known), "2");
        assert_eq!(resolved("x", "", &known), "");
    }

    #[test]
    fn instances_are_those_of_all_groups_and_devices() {
        let group = |kind: Kind, count, gpus: &[i32], passive| ModelInstanceGroup {
            kind: kind.into(),
            count,
            gpus: gpus.to_vec(),
            passive,
            ..ModelInstanceGroup::default()
        };
        let config = ModelConfig {
            instance_group: vec![
                group(Kind::Cpu, 3, &[], false),
                group(Kind::Gpu, 2, &[0, 1], false),
                group(Kind::Cpu, 7, &[], true),
            ],
            max_batch_size: 8,
            ..ModelConfig::default()
        };
        let member = Member::new(ModelKey::default(), &config);
        assert_eq!((member.instances, member.max_batch, member.has_batching), (7, 8, false));
    }
}
