//! Opens a model's instances and starts the batcher in front of them.

use std::{rc::Rc, sync::Arc};

use actix::{Actor, Addr, AsyncContext};
use futures_util::future::try_join_all;
use tokio::sync::oneshot;

use super::{
    actor::Batcher,
    mailbox::{InstanceMailbox, Mailbox},
    readiness::Checkup,
    response_order::ResponseOrder,
    scheduler::{self, Scheduling},
    timer::Timer,
};
use crate::{
    engines::Engines,
    instance::{InstanceActor, InstanceOpener, InstancePool, OpenedModel},
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
    batcher: Addr<Batcher>,
    /// In the order of the slots.
    instances: Vec<Addr<InstanceActor>>,
    /// The model has a say in whether it is ready.
    has_check: bool,
}

/// Opens all instances, in parallel; answers once every one is open, or with the first failure.
pub async fn start(setup: BatcherSetup) -> Result<Arc<Mailbox>> {
    let BatcherSetup { config, version, stats, health, backend, engines } = setup;
    let names = instance_names(&config, &health);
    if names.is_empty() {
        return Err(Error::invalid(format!("model '{}' has no instances", config.name)));
    }
    let labels: Vec<String> = names.iter().map(|instance| instance.name.clone()).collect();
    let failures = Arc::new(FailureLog::new(&config.name, version));
    let open = |name| {
        let (backend, config, stats) = (backend.clone(), config.clone(), stats.clone());
        let failures = failures.clone();
        let opener = InstanceOpener { backend, name, config, stats, failures };
        async move { opener.open().await.map(|opened| (opener, opened)) }
    };
    let opened = try_join_all(names.into_iter().map(open)).await?;
    // Before an instance can go down.
    labels.iter().for_each(|_| health.join());
    let (started, made) = oneshot::channel();
    let waits = engines.wait_graph().join();
    let shared = SharedParts { config: config.clone(), stats: stats.clone(), health, waits };
    engines.pick().spawn_fn(move || {
        // Nobody waits any more when the load was given up.
        let _ = started.send(start_here(shared, opened));
    });
    let gone = |_| Error::internal(format!("the engine stopped while '{}' loaded", config.name));
    let StartedActors { batcher, instances, has_check } = made.await.map_err(gone)??;
    let checkup = has_check.then(Arc::<Checkup>::default);
    let instances = labels.into_iter().zip(instances);
    let instances = instances.map(|(name, address)| InstanceMailbox { name, address }).collect();
    Ok(Arc::new(Mailbox { model: config.name.clone(), batcher, instances, stats, checkup }))
}

/// Called on the engine's thread.
fn start_here(
    shared: SharedParts,
    opened: Vec<(InstanceOpener, OpenedModel)>,
) -> Result<StartedActors> {
    let SharedParts { config, stats, health, waits } = shared;
    let Scheduling { scheduler, preserves_order, is_immediate } = scheduler::for_config(&config);
    let pool = InstancePool::attach(opened, is_immediate)?;
    let timer = scheduler.is_timed().then(Timer::new).transpose();
    let timer = timer.map_err(|error| Error::internal(format!("no timer: {error}")))?;
    let (instances, has_check) = (pool.addresses(), pool.has_check());
    let batcher = Batcher::create(|ctx| Batcher {
        is_immediate: is_immediate && pool.is_inline(),
        is_flushing: false,
        order: (preserves_order && pool.is_parallel()).then(ResponseOrder::default),
        inbox: Arc::new(ctx.address().downgrade()),
        timer: timer.map(Rc::new),
        config,
        stats,
        scheduler,
        pool,
        waits,
        health,
        is_rebalancing: false,
    });
    Ok(StartedActors { batcher, instances, has_check })
}

fn instance_names(config: &ModelConfig, health: &Arc<Health>) -> Vec<InstanceName> {
    let mut names = Vec::new();
    for group in config.instance_groups.iter().filter(|group| !group.passive) {
        let (kind, devices) = match group.kind {
            InstanceKind::Cpu => ("CPU", vec![0]),
            InstanceKind::Gpu => ("GPU", group.gpus.clone()),
            InstanceKind::Model => ("MODEL", vec![0]),
        };
        for device in devices {
            for number in 0..group.count {
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
