//! The instances that a config asks for: their names, and how they are opened.

use std::sync::Arc;

use futures_util::future::try_join_all;

use crate::{
    instance::{InstanceOpener, OpenedModel},
    rate_limiter::{RateLimiter, ResourceDemand, Seat},
};
use troupe_base::{
    backend::{Backend, InstanceName},
    config::{InstanceGroup, InstanceKind, InstanceScaling, ModelConfig, RateLimits},
    error::Result,
    failure_log::FailureLog,
    model::Health,
    statistics::Statistics,
};

/// An instance as the config asks for it.
#[derive(Clone)]
pub(super) struct WantedInstance {
    pub(super) name: InstanceName,
    pub(super) rate_limits: RateLimits,
}

/// What the instances of a model are opened from.
pub(super) struct InstanceSource {
    pub(super) backend: Backend,
    pub(super) config: Arc<ModelConfig>,
    pub(super) stats: Arc<Statistics>,
    pub(super) health: Arc<Health>,
    pub(super) failures: Arc<FailureLog>,
    /// Where executions need resources of the server.
    pub(super) limiter: Option<Arc<RateLimiter>>,
}

impl InstanceSource {
    /// Opens instances, in parallel: all of them, or none. They count as up from then on.
    pub(super) async fn open(
        &self,
        wanted: &[WantedInstance],
    ) -> Result<Vec<(InstanceOpener, OpenedModel)>> {
        let seats = take_seats(wanted, self.limiter.as_ref())?;
        let open = |(wanted, seat): (&WantedInstance, Option<Arc<Seat>>)| {
            let opener = InstanceOpener {
                backend: self.backend.clone(),
                name: wanted.name.clone(),
                config: self.config.clone(),
                stats: self.stats.clone(),
                failures: self.failures.clone(),
                seat,
            };
            async move { opener.open().await.map(|opened| (opener, opened)) }
        };
        let opened = try_join_all(wanted.iter().zip(seats).map(open)).await?;
        // Before an instance can go down.
        opened.iter().for_each(|_| self.health.join());
        Ok(opened)
    }
}

/// Does an instance need resources to execute?
pub(super) fn has_limits(config: &ModelConfig) -> bool {
    let groups = config.instance_groups.iter().filter(|group| !group.passive);
    groups.flat_map(|group| &group.rate_limits.resources).any(|resource| resource.count != 0)
}

/// How the number of instances follows the queue: a model has one group that may say so.
pub(super) fn followed(groups: &[InstanceGroup]) -> Option<InstanceScaling> {
    groups.iter().find_map(|group| group.scaling)
}

/// The same with so many instances in the group that follows the queue, on each device.
pub(super) fn with_count(groups: &[InstanceGroup], count: u32) -> Vec<InstanceGroup> {
    let mut groups = groups.to_vec();
    groups.iter_mut().filter(|it| it.scaling.is_some()).for_each(|it| it.count = count);
    groups
}

/// For each instance its seat at the rate limiter, if it needs one.
fn take_seats(
    wanted: &[WantedInstance],
    limiter: Option<&Arc<RateLimiter>>,
) -> Result<Vec<Option<Arc<Seat>>>> {
    let Some(limiter) = limiter else { return Ok(vec![None; wanted.len()]) };
    let demand = |it: &WantedInstance| ResourceDemand::new(&it.rate_limits, it.name.device);
    let demands: Vec<_> = wanted.iter().map(demand).collect();
    let seats = limiter.join(&demands.iter().flatten().cloned().collect::<Vec<_>>())?;
    let mut seats = seats.into_iter();
    Ok(demands.iter().map(|demand| demand.as_ref().and_then(|_| seats.next())).collect())
}

/// As many as the config says; where it does not, one for each of so many threads.
pub(super) fn wanted(
    groups: &[InstanceGroup],
    health: &Arc<Health>,
    threads: usize,
) -> Vec<WantedInstance> {
    let mut all = Vec::new();
    for group in groups.iter().filter(|group| !group.passive) {
        let (kind, devices) = match group.kind {
            InstanceKind::Cpu => ("CPU", vec![0]),
            InstanceKind::Gpu => ("GPU", group.gpus.clone()),
            InstanceKind::Model => ("MODEL", vec![0]),
        };
        for device in devices {
            let count = match group.is_default_count {
                true => (threads as u32).max(group.count),
                false => group.count,
            };
            for number in 0..count {
                let name = InstanceName {
                    name: format!("{}_{number}", group.name),
                    index: all.len(),
                    kind,
                    device,
                    is_auto: group.is_auto,
                    health: health.clone(),
                };
                all.push(WantedInstance { name, rate_limits: group.rate_limits.clone() });
            }
        }
    }
    all
}
