//! Live scaling: instances are added to a model that serves, and taken away, while it serves on.

use std::{
    cmp::Ordering,
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
};

use actix::Addr;
use futures_util::{
    FutureExt,
    future::{self, BoxFuture, try_join_all},
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    actor::Batcher,
    instances::{InstanceSource, WantedInstance, followed, has_limits, wanted, with_count},
    scaled::{AddInstance, AddedInstance, CloseSlot, OpenSlot},
};
use crate::instance::{InstanceActor, InstanceOpener, OpenedModel, WarmUp};
use troupe_base::{
    config::{Batching, InstanceGroup, InstanceKind, InstanceScaling, ModelConfig},
    error::{Error, Result},
    model::warmup::{self, WarmupSample},
};

/// Changes the instances of one model.
pub(super) struct Scaler {
    pub(super) source: InstanceSource,
    /// In the order of their shards.
    pub(super) batchers: Vec<Addr<Batcher>>,
    pub(super) instances: Mutex<Vec<InstanceMailbox>>,
    /// What is asked for by now; a group that follows the queue has had its `count` at first.
    pub(super) groups: Mutex<Vec<InstanceGroup>>,
    /// What new instances are warmed up with.
    pub(super) samples: OnceLock<Arc<[WarmupSample]>>,
    /// One change after the other.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// Its instances are what they are until it is loaded again: each knows something of its own, or
    /// was made for its thread.
    pub(super) is_fixed: bool,
    /// Executions that each instance may have at once.
    pub(super) concurrency: usize,
}

/// An instance of the model.
#[derive(Clone)]
pub(super) struct InstanceMailbox {
    pub(super) wanted: WantedInstance,
    pub(super) address: Addr<InstanceActor>,
    /// The batcher it is in.
    pub(super) batcher: usize,
    pub(super) slot: usize,
}

/// What has to be done so that the instances are those that are wanted.
#[derive(Default)]
struct ScalePlan {
    add: Vec<WantedInstance>,
    /// Positions.
    remove: Vec<usize>,
}

impl ScalePlan {
    fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }
}

impl Scaler {
    /// Gives the model the instances of this config, which differs in nothing else; `None` if that takes
    /// another load.
    pub(super) fn scale(
        self: &Arc<Self>,
        config: &ModelConfig,
    ) -> Option<BoxFuture<'static, Result<()>>> {
        let limiter = self.source.limiter.is_some();
        let groups = config.instance_groups.clone();
        let wanted = wanted(&groups, &self.source.health, 1);
        if wanted.is_empty() || has_limits(config) != limiter {
            return None;
        }
        if self.is_fixed {
            // Without a queue there may be one for each thread, whatever the config says.
            let is_queued = !matches!(config.batching, Batching::Direct);
            let stays = is_queued && self.plan(wanted).is_empty();
            return stays.then(|| future::ready(Ok(())).boxed());
        }
        let this = self.clone();
        Some(Box::pin(async move { this.reload(groups).await }))
    }

    async fn reload(&self, groups: Vec<InstanceGroup>) -> Result<()> {
        let _turn = self.turn.lock().await;
        // What followed the queue before and does so now goes on from where it is.
        let goes_on = self.scaling().and(followed(&groups));
        let begin = goes_on.map(|it| with_count(&groups, self.count().clamp(it.min, it.max)));
        let wanted = wanted(begin.as_ref().unwrap_or(&groups), &self.source.health, 1);
        self.change_to(wanted, "").await?;
        *self.groups.lock() = groups;
        Ok(())
    }

    /// How the number of instances follows the queue, if it does.
    pub(super) fn scaling(&self) -> Option<InstanceScaling> {
        followed(&self.groups.lock())
    }

    /// Instances there are, on each device.
    pub(super) fn count(&self) -> u32 {
        let devices = self.devices();
        let all = self.instances.lock().len() / devices;
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    /// Executions that there may be at once for each of the instances on one device.
    pub(super) fn places(&self) -> usize {
        self.devices().saturating_mul(self.concurrency)
    }

    fn devices(&self) -> usize {
        let groups = self.groups.lock();
        let devices = groups.iter().filter(|it| !it.passive).map(|it| it.devices());
        devices.max().unwrap_or(1)
    }

    /// What the instances run on, of a model whose number of them follows the queue.
    pub(super) fn kind(&self) -> InstanceKind {
        let groups = self.groups.lock();
        let group = groups.iter().find(|it| it.scaling.is_some());
        group.map_or(InstanceKind::Model, |it| it.kind)
    }

    /// Has the model so many instances on each device, as its queue asks for, unless it has been told
    /// something else than this meanwhile. The log says `why`.
    pub(super) async fn follow(
        &self,
        scaling: &InstanceScaling,
        count: u32,
        why: &str,
    ) -> Result<()> {
        let _turn = self.turn.lock().await;
        if self.scaling() != Some(*scaling) {
            return Ok(());
        }
        let groups = with_count(&self.groups.lock(), count);
        self.change_to(wanted(&groups, &self.source.health, 1), why).await
    }

    /// To be called by whoever has the turn.
    async fn change_to(&self, wanted: Vec<WantedInstance>, why: &str) -> Result<()> {
        let current = self.instances.lock().clone();
        let planned = self.plan(wanted);
        if planned.is_empty() {
            return Ok(());
        }
        let ScalePlan { add, remove } = planned;
        let opened = self.source.open(&add).await?;
        let mut added = Vec::new();
        let placed = self.place(&add, opened, &mut added).await;
        if let Err(error) = match placed {
            Ok(()) => self.warm_up(&added).await,
            failed => failed,
        } {
            added.iter().for_each(|instance| self.close(instance));
            return Err(error);
        }
        for instance in &added {
            self.batchers[instance.batcher].do_send(OpenSlot(instance.slot));
        }
        remove.iter().for_each(|index| self.close(&current[*index]));
        let (model, count) = (&self.source.config.name, self.instances.lock().len());
        let scalings = &self.source.stats.scalings;
        match count.cmp(&current.len()) {
            Ordering::Less => scalings.down.fetch_add(1, Relaxed),
            Ordering::Equal => 0,
            Ordering::Greater => scalings.up.fetch_add(1, Relaxed),
        };
        tracing::info!(
            "scaled `{model}` to {count} instances: {} added, {} removed{why}",
            added.len(),
            remove.len()
        );
        Ok(())
    }

    /// What has to be done with the instances that there are.
    fn plan(&self, wanted: Vec<WantedInstance>) -> ScalePlan {
        let instances = self.instances.lock();
        plan(&instances.iter().map(|it| &it.wanted).collect::<Vec<_>>(), wanted)
    }

    /// Hands instances to batchers, which give them no work yet.
    async fn place(
        &self,
        wanted: &[WantedInstance],
        opened: Vec<(InstanceOpener, OpenedModel)>,
        added: &mut Vec<InstanceMailbox>,
    ) -> Result<()> {
        let mut failed = None;
        for (wanted, (opener, opened)) in wanted.iter().zip(opened) {
            if failed.is_some() {
                self.source.health.leave(true);
                continue;
            }
            let batcher = self.emptiest();
            let (answer, attached) = oneshot::channel();
            self.batchers[batcher].do_send(AddInstance { opener, opened, answer });
            let gone = |_| {
                // Whoever would have taken it is not there to count it out.
                self.source.health.leave(true);
                Err(Error::unavailable("the model ended while it was scaled"))
            };
            match attached.await.unwrap_or_else(gone) {
                Ok(AddedInstance { slot, address }) => {
                    let mailbox =
                        InstanceMailbox { wanted: wanted.clone(), address, batcher, slot };
                    // It counts where the next one is placed.
                    self.instances.lock().push(mailbox.clone());
                    added.push(mailbox);
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The batcher with the fewest instances.
    fn emptiest(&self) -> usize {
        let instances = self.instances.lock();
        let count = |batcher: &usize| instances.iter().filter(|it| it.batcher == *batcher).count();
        (0..self.batchers.len()).min_by_key(count).unwrap_or(0)
    }

    /// Gives an instance nothing more; it goes once it is through.
    fn close(&self, instance: &InstanceMailbox) {
        let InstanceMailbox { batcher, slot, .. } = *instance;
        self.instances.lock().retain(|it| (it.batcher, it.slot) != (batcher, slot));
        self.batchers[batcher].do_send(CloseSlot(slot));
    }

    async fn warm_up(&self, instances: &[InstanceMailbox]) -> Result<()> {
        let Some(samples) = self.samples.get() else { return Ok(()) };
        warm_up(&self.source.config.name, instances, samples).await
    }
}

/// Runs the samples on these instances, in parallel; ends with the first failure.
pub(super) async fn warm_up(
    model: &str,
    instances: &[InstanceMailbox],
    samples: &[WarmupSample],
) -> Result<()> {
    let each = instances.iter().map(|instance| async move {
        let target = format!("model '{model}' instance {}", instance.wanted.name.name);
        let run = |group| instance.address.do_send(WarmUp(group));
        warmup::run(samples, &target, run).await
    });
    try_join_all(each).await.map(|_| ())
}

/// Keeps what is wanted, by its name if that is still there; new ones have names and numbers that
/// nobody else has.
fn plan(current: &[&WantedInstance], wanted: Vec<WantedInstance>) -> ScalePlan {
    let is_alike = |a: &WantedInstance, b: &WantedInstance| {
        // On the CPU it does not matter who chose it.
        let is_auto = |it: &WantedInstance| it.name.is_auto && it.name.kind != "CPU";
        let key = |it: &WantedInstance| (it.name.kind, it.name.device, is_auto(it));
        key(a) == key(b) && a.rate_limits == b.rate_limits
    };
    let mut kept = vec![false; current.len()];
    let mut keep = |wanted: &WantedInstance, has_its_name: bool| {
        let fits = |(index, it): &(usize, &&WantedInstance)| {
            let is_named = !has_its_name || it.name.name == wanted.name.name;
            !kept[*index] && is_named && is_alike(it, wanted)
        };
        let found = current.iter().enumerate().find(fits).map(|(index, _)| index);
        if let Some(index) = found {
            kept[index] = true;
        }
        found.is_some()
    };
    let mut add: Vec<_> = wanted.into_iter().filter(|it| !keep(it, true)).collect();
    add.retain(|it| !keep(it, false));
    let there = || current.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(it, _)| &it.name);
    let mut indexes: Vec<usize> = there().map(|name| name.index).collect();
    for instance in &mut add {
        let free = (0..).find(|index| !indexes.contains(index));
        instance.name.index = free.expect("numbers do not run out");
        indexes.push(instance.name.index);
    }
    let remove = (0..current.len()).filter(|index| !kept[*index]).collect();
    ScalePlan { add, remove }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::config::{ServerFeatures, read_text};

    fn of(groups: &str) -> Vec<WantedInstance> {
        let text = format!(
            "name: 'm' backend: 'onnxruntime' {groups} \
             input {{ name: 'x' data_type: TYPE_FP32 dims: 1 }} \
             output {{ name: 'y' data_type: TYPE_FP32 dims: 1 }}"
        );
        let features = ServerFeatures { gpus: || Some(&[0, 1]) };
        let config = read_text(&text, "f").unwrap().finish(&features).unwrap();
        wanted(&config.instance_groups, &Arc::default(), 1)
    }

    /// What is added, and what is removed.
    fn check(before: &str, after: &str, added: &[(&str, usize)], removed: &[&str]) {
        let before_it = of(before);
        let ScalePlan { add, remove } = plan(&before_it.iter().collect::<Vec<_>>(), of(after));
        let add: Vec<_> = add.iter().map(|it| (&*it.name.name, it.name.index)).collect();
        let remove: Vec<_> = remove.iter().map(|it| &*before_it[*it].name.name).collect();
        assert_eq!((&*add, &*remove), (added, removed), "{before} -> {after}");
    }

    #[test]
    fn what_is_wanted_stays_and_the_rest_comes_or_goes() {
        let cpu = |count: u32| format!("instance_group {{ count: {count} kind: KIND_CPU }}");
        check(&cpu(1), &cpu(3), &[("m_0_1", 1), ("m_0_2", 2)], &[]);
        check(&cpu(3), &cpu(1), &[], &["m_0_1", "m_0_2"]);
        check(&cpu(2), &cpu(2), &[], &[]);
        let gpu = "instance_group { count: 1 kind: KIND_GPU gpus: 1 }";
        check(&cpu(2), gpu, &[("m_0_0", 0)], &["m_0_0", "m_0_1"]);
        let named = "instance_group { name: 'other' count: 2 kind: KIND_CPU }";
        check(&cpu(1), named, &[("other_1", 1)], &[]);
        let both = format!("{gpu} {named}");
        check(gpu, &both, &[("other_0", 1), ("other_1", 2)], &[]);
        let limited = "instance_group { count: 1 kind: KIND_CPU \
                       rate_limiter { resources { name: 'R' count: 1 } } }";
        check(&cpu(1), limited, &[("m_0_0", 0)], &["m_0_0"]);
    }
}
