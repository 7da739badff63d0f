//! Opens a model's instances and starts the batcher in front of them.

use std::{rc::Rc, sync::Arc};

use actix::{Actor, AsyncContext};
use futures_util::future::try_join_all;
use tokio::sync::oneshot;

use super::{
    actor::Batcher,
    mailbox::{BatcherShard, InstanceMailbox, Mailbox},
    readiness::Checkup,
    response_order::ResponseOrder,
    scheduler::{self, Scheduling},
    timer::Timer,
};
use crate::{
    engines::Engines,
    instance::{Findable, InstanceOpener, InstancePool, OpenedModel, runs_inline},
};
use troupe_base::{
    backend::{Backend, InstanceName},
    config::{InstanceKind, ModelConfig},
    error::{Error, Result},
    failure_log::FailureLog,
    model::Health,
    request::deadlock::WaitReporter,
    statistics::Statistics,
};

/// What a batcher is made of.
pub struct BatcherSetup {
    /// The completed config.
    pub config: Arc<ModelConfig>,
    /// The model's.
    pub version: i64,
    /// Shared with the model.
    pub stats: Arc<Statistics>,
    /// Shared with the model.
    pub health: Arc<Health>,
    /// Opens the instances.
    pub backend: Backend,
    /// Where light actors live.
    pub engines: Engines,
}

/// What a batcher shares with others.
struct SharedParts {
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    health: Arc<Health>,
    waits: WaitReporter,
}

/// Actors that were started on an engine's thread.
struct StartedActors {
    shard: BatcherShard,
    /// In the order of the slots.
    instances: Vec<InstanceMailbox>,
    /// The model has a say in whether it is ready.
    has_check: bool,
}

/// Opens all instances, in parallel; answers once every one is open, or with the first failure.
pub async fn start(setup: BatcherSetup) -> Result<Arc<Mailbox>> {
    let BatcherSetup { config, version, stats, health, backend, engines } = setup;
    // Each with a batcher.
    let threads = match is_spread(&config, &backend)? {
        true => engines.all().to_vec(),
        false => vec![engines.pick()],
    };
    let names = instance_names(&config, &health, threads.len());
    if names.is_empty() {
        return Err(Error::invalid(format!("model '{}' has no instances", config.name)));
    }
    let failures = Arc::new(FailureLog::new(&config.name, version));
    let open = |name| {
        let (backend, config, stats) = (backend.clone(), config.clone(), stats.clone());
        let failures = failures.clone();
        let opener = InstanceOpener { backend, name, config, stats, failures };
        async move { opener.open().await.map(|opened| (opener, opened)) }
    };
    let opened = try_join_all(names.into_iter().map(open)).await?;
    // Before an instance can go down.
    opened.iter().for_each(|_| health.join());
    let shards = shards(opened, threads.len());
    let is_everywhere = shards.len() == threads.len();
    let started = shards.into_iter().zip(threads).map(|(opened, thread)| {
        // Those of few instances are not all on the first threads.
        let thread = if is_everywhere { thread } else { engines.pick() };
        let (started, made) = oneshot::channel();
        let waits = engines.wait_graph().join();
        let (config, stats, health) = (config.clone(), stats.clone(), health.clone());
        thread.spawn_fn(move || {
            let shared = SharedParts { config, stats, health, waits };
            // Nobody waits any more when the load was given up.
            let _ = started.send(start_here(shared, opened));
        });
        made
    });
    let gone = |_| Error::internal(format!("the engine stopped while '{}' loaded", config.name));
    let started = try_join_all(started).await.map_err(gone)?;
    let mut has_check = false;
    let (mut batchers, mut instances) = (Vec::new(), Vec::new());
    for actors in started {
        let actors = actors?;
        has_check |= actors.has_check;
        batchers.push(actors.shard);
        instances.extend(actors.instances);
    }
    let checkup = has_check.then(Arc::<Checkup>::default);
    let model = config.name.clone();
    Ok(Arc::new(Mailbox { model, batchers: batchers.into(), instances, stats, checkup }))
}

/// A model whose executions end before whoever asks could have asked another thread needs no queue
/// of its own: each engine thread can have a batcher with instances of it.
fn is_spread(config: &ModelConfig, backend: &Backend) -> Result<bool> {
    Ok(scheduler::for_config(config).is_immediate && runs_inline(backend, config)?)
}

/// Deals instances out to so many batchers, if there are as many instances.
fn shards<T>(instances: Vec<T>, batchers: usize) -> Vec<Vec<T>> {
    let count = instances.len().min(batchers);
    let mut shards: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for (index, instance) in instances.into_iter().enumerate() {
        shards[index % count].push(instance);
    }
    shards
}

/// Called on the engine's thread.
fn start_here(
    shared: SharedParts,
    opened: Vec<(InstanceOpener, OpenedModel)>,
) -> Result<StartedActors> {
    let SharedParts { config, stats, health, waits } = shared;
    let names: Vec<String> = opened.iter().map(|(opener, _)| opener.name.name.clone()).collect();
    let Scheduling { scheduler, preserves_order, is_immediate } = scheduler::for_config(&config);
    let pool = InstancePool::attach(opened, is_immediate)?;
    let timer = scheduler.is_timed().then(Timer::new).transpose();
    let timer = timer.map_err(|error| Error::internal(format!("no timer: {error}")))?;
    let instances = names.into_iter().zip(pool.addresses());
    let instances = instances.map(|(name, address)| InstanceMailbox { name, address }).collect();
    let has_check = pool.has_check();
    let immediate = is_immediate && pool.may_run_now();
    let immediate = immediate.then(|| Findable::new(pool.immediate()));
    let key = immediate.as_ref().map(Findable::key);
    let batcher = Batcher::create(|ctx| Batcher {
        immediate,
        is_flushing: false,
        order: (preserves_order && pool.is_parallel()).then(ResponseOrder::default),
        inbox: Arc::new(ctx.address().downgrade()),
        timer: timer.map(Rc::new),
        wakes_at: None,
        config,
        stats,
        scheduler,
        pool,
        waits,
        health,
        is_rebalancing: false,
        is_sweep_due: false,
    });
    Ok(StartedActors { shard: BatcherShard { batcher, immediate: key }, instances, has_check })
}

/// As many as the config says; where it does not, one for each of so many threads.
fn instance_names(config: &ModelConfig, health: &Arc<Health>, threads: usize) -> Vec<InstanceName> {
    let mut names = Vec::new();
    for group in config.instance_groups.iter().filter(|group| !group.passive) {
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
                names.push(InstanceName {
                    name: format!("{}_{number}", group.name),
                    index: names.len(),
                    kind,
                    device,
                    is_auto: group.is_auto,
                    health: health.clone(),
                });
            }
        }
    }
    names
}
