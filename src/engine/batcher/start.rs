//! Opens a model's instances and starts the batcher in front of them.

use std::{
    num::NonZeroUsize,
    rc::Rc,
    sync::{Arc, OnceLock},
    time::Instant,
};

use actix::{Actor, Addr, AsyncContext};
use actix_rt::ArbiterHandle;
use futures_util::future::try_join_all;
use tokio::sync::oneshot;

use super::{
    actor::Batcher,
    autoscaler::AutoscalerSlot,
    deadlock::ModelReport,
    instances::{InstanceSource, WantedInstance, has_limits, wanted},
    mailbox::{BatcherShard, Mailbox},
    rate_claims::RateClaims,
    readiness::Checkup,
    response_order::ResponseOrder,
    scaling::{InstanceMailbox, Scaler},
    scheduler::{self, Scheduling},
    shards::{Shard, Shards},
    stateful_parts::{SequenceCount, StatefulParts},
    timer::Timer,
};
use crate::{
    engines::{Engines, PerThread},
    instance::{
        Findable, InstanceActor, InstanceOpener, InstancePool, OpenedModel, PoolUse, StateFeed,
        runs_inline,
    },
};
use troupe_base::{
    backend::Backend,
    config::{Batching, ModelConfig},
    error::{Error, Result},
    failure_log::FailureLog,
    model::Health,
    request::StateSet,
    statistics::Statistics,
};

/// What a batcher is made of.
pub struct BatcherSetup {
    /// The completed config, as executors see it.
    pub config: Arc<ModelConfig>,
    /// The model's.
    pub version: i64,
    /// Shared with the model.
    pub stats: Arc<Statistics>,
    /// Shared with the model.
    pub health: Arc<Health>,
    /// Opens the instances.
    pub backend: Backend,
    /// What the model keeps for its sequences.
    pub states: Option<Arc<StateSet>>,
    /// Where light actors live.
    pub engines: Engines,
    /// The only ensemble that runs the model, or the one around it.
    pub ensemble: Option<Arc<str>>,
}

/// What the batchers of a model share.
#[derive(Clone)]
struct SharedParts {
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    health: Arc<Health>,
    waits: Arc<ModelReport>,
    /// Executions need resources of the server.
    is_limited: bool,
    states: Option<StateFeed>,
    /// Of several batchers.
    shards: Option<Arc<Shards>>,
    sequences: Arc<SequenceCount>,
}

/// Actors that were started on an engine's thread.
struct StartedActors {
    shard: BatcherShard,
    /// In the order of the slots.
    instances: Vec<Addr<InstanceActor>>,
    /// The model has a say in whether it is ready.
    has_check: bool,
}

/// Opens all instances, in parallel; answers once every one is open, or with the first failure.
pub async fn start(setup: BatcherSetup) -> Result<Arc<Mailbox>> {
    let BatcherSetup { config, version, stats, health, backend, states, engines, ensemble } = setup;
    let limiter = engines.rate_limiter().filter(|_| has_limits(&config)).cloned();
    let is_limited = limiter.is_some();
    let is_everywhere = !is_limited && is_everywhere(&config, &backend)?;
    let threads = engines.all();
    let count = if is_everywhere { threads.len() } else { 1 };
    let wanted = some_wanted(&config, &health, count)?;
    let source = InstanceSource {
        failures: Arc::new(FailureLog::new(&config.name, version)),
        backend,
        config: config.clone(),
        stats: stats.clone(),
        health: health.clone(),
        limiter,
    };
    let opened = source.open(&wanted).await?;
    let concurrency = opened.iter().filter_map(|(_, it)| it.concurrency()).max();
    let is_sharded = !is_limited && is_sharded(&config, &opened);
    let count = if is_sharded { threads.len().min(opened.len()) } else { 1 };
    let neighbours = ensemble.filter(|_| count == 1).map(|it| engines.beside(&it));
    let numbers = match &neighbours {
        Some(neighbours) => vec![neighbours.thread()],
        None => engines.pick(count),
    };
    let sequences = Arc::<SequenceCount>::default();
    let shared = SharedParts {
        sequences: sequences.clone(),
        config: config.clone(),
        stats: stats.clone(),
        health,
        waits: Arc::new(ModelReport::new(engines.wait_graph().join(), count)),
        is_limited,
        states: states.map(|set| StateFeed::new(set, matches!(source.backend, Backend::Local(_)))),
        shards: (count != 1).then(|| Arc::new(Shards::new(count))),
    };
    let is_fixed = is_everywhere || is_fixed(&config);
    let started = start_on(threads, &numbers, shared, deal(opened, count)).await?;
    let (shards, instances, has_check) = collected(started, deal(wanted, count))?;
    let checkup = has_check.then(Arc::<Checkup>::default);
    let scaler = Arc::new(Scaler {
        source,
        batchers: shards.iter().map(|shard| shard.batcher.clone()).collect(),
        instances: instances.into(),
        groups: config.instance_groups.clone().into(),
        samples: OnceLock::new(),
        turn: tokio::sync::Mutex::default(),
        is_fixed,
        concurrency: concurrency.map_or(1, NonZeroUsize::get),
    });
    let autoscaler = AutoscalerSlot::new(engines.memory());
    autoscaler.start_if_wanted(&scaler);
    let model = config.name.clone();
    let batchers = PerThread::new(threads.len(), numbers.into_iter().zip(shards));
    Ok(Arc::new(Mailbox {
        model,
        batchers,
        scaler,
        autoscaler,
        stats,
        sequences,
        checkup,
        _neighbours: neighbours,
    }))
}

/// The instances that a model shall have: one at least.
fn some_wanted(
    config: &ModelConfig,
    health: &Arc<Health>,
    count: usize,
) -> Result<Vec<WantedInstance>> {
    let wanted = wanted(&config.instance_groups, health, count);
    match wanted.is_empty() {
        true => Err(Error::invalid(format!("model '{}' has no instances", config.name))),
        false => Ok(wanted),
    }
}

/// Starts a batcher with its instances on each of these threads, named by their numbers.
async fn start_on(
    threads: &[ArbiterHandle],
    numbers: &[usize],
    shared: SharedParts,
    dealt: Vec<Vec<(InstanceOpener, OpenedModel)>>,
) -> Result<Vec<Result<StartedActors>>> {
    let model = shared.config.name.clone();
    let started = dealt.into_iter().enumerate().zip(numbers).map(|((shard, opened), number)| {
        let (started, made) = oneshot::channel();
        let shared = shared.clone();
        threads[*number].spawn_fn(move || {
            // Nobody waits any more when the load was given up.
            let _ = started.send(start_here(shared, shard, opened));
        });
        made
    });
    let gone = |_| Error::internal(format!("the engine stopped while '{model}' loaded"));
    try_join_all(started).await.map_err(gone)
}

/// The batchers, all their instances, and whether the model has a say in whether it is ready.
fn collected(
    started: Vec<Result<StartedActors>>,
    dealt: Vec<Vec<WantedInstance>>,
) -> Result<(Vec<BatcherShard>, Vec<InstanceMailbox>, bool)> {
    let mut has_check = false;
    let (mut shards, mut instances) = (Vec::new(), Vec::new());
    for (batcher, (actors, wanted)) in started.into_iter().zip(dealt).enumerate() {
        let actors = actors?;
        has_check |= actors.has_check;
        shards.push(actors.shard);
        let attached = wanted.into_iter().zip(actors.instances).enumerate();
        instances.extend(attached.map(|(slot, (wanted, address))| InstanceMailbox {
            wanted,
            address,
            batcher,
            slot,
        }));
    }
    Ok((shards, instances, has_check))
}

/// A model whose executions end before whoever asks could have asked another thread needs no queue
/// of its own: each engine thread can have a batcher with instances of it.
fn is_everywhere(config: &ModelConfig, backend: &Backend) -> Result<bool> {
    let is_everywhere = scheduler::is_immediate(config) && runs_inline(backend, config)?;
    if is_everywhere {
        check_unscaled(config)?;
    }
    Ok(is_everywhere)
}

/// What has an instance for each thread cannot have more of them.
fn check_unscaled(config: &ModelConfig) -> Result<()> {
    let mut groups = config.instance_groups.iter();
    let Some(index) = groups.position(|it| it.scaling.is_some()) else { return Ok(()) };
    let text = format!(
        "instance group {} of model {} can not have 'scaling': its requests run at once, without a \
         queue, on the thread that they come in on",
        config.instance_groups[index].name, config.name
    );
    let path = format!("instance_group[{index}].scaling");
    Err(Error::invalid(config.source_map.problem(&path, text).message()))
}

/// A model whose requests gain nothing by waiting for each other can be asked on several threads.
/// One that does other things while an execution waits is not: its work is spread evenly over its
/// instances, and takes longer than the way to another thread.
fn is_sharded(config: &ModelConfig, opened: &[(InstanceOpener, OpenedModel)]) -> bool {
    let is_concurrent = opened.iter().any(|(_, opened)| opened.concurrency().is_some());
    scheduler::is_immediate(config) && !is_concurrent
}

/// Does an instance know something of earlier requests, or is the order of answers kept for as many as
/// there are?
fn is_fixed(config: &ModelConfig) -> bool {
    match &config.batching {
        Batching::Direct => false,
        Batching::Dynamic(dynamic) => dynamic.preserve_ordering,
        Batching::Sequence(_) => true,
    }
}

/// Deals instances out to so many batchers.
fn deal<T>(instances: Vec<T>, batchers: usize) -> Vec<Vec<T>> {
    let mut dealt: Vec<Vec<T>> = (0..batchers).map(|_| Vec::new()).collect();
    for (index, instance) in instances.into_iter().enumerate() {
        dealt[index % batchers].push(instance);
    }
    dealt
}

/// Called on the engine's thread.
fn start_here(
    shared: SharedParts,
    index: usize,
    opened: Vec<(InstanceOpener, OpenedModel)>,
) -> Result<StartedActors> {
    let SharedParts { config, stats, health, waits, states, is_limited, shards, sequences } =
        shared;
    let Scheduling { scheduler, preserves_order, is_immediate, is_stateful } =
        scheduler::for_config(&config, states.as_ref(), opened.len(), Instant::now())?;
    // What needs resources waits for them, wherever it runs.
    let is_immediate = is_immediate && !is_limited;
    let pool_use = PoolUse { queues: is_immediate, is_shared: shards.is_some(), is_stateful };
    let pool = InstancePool::attach(opened, pool_use, states)?;
    let timer = scheduler.is_timed().then(Timer::new).transpose();
    let timer = timer.map_err(|error| Error::internal(format!("no timer: {error}")))?;
    let instances = pool.addresses();
    let has_check = pool.has_check();
    let immediate = is_immediate && pool.may_run_now();
    let immediate = immediate.then(|| Findable::new(pool.immediate()));
    let key = immediate.as_ref().map(Findable::key);
    let shared = shards.clone().map(|shards| (shards, index));
    let batcher = Batcher::create(|ctx| {
        let this = ctx.address().downgrade();
        let shard = shards.map(|all| Shard::join(all, index, Box::new(this.clone())));
        Batcher {
            immediate,
            is_flushing: false,
            is_paused: false,
            order: (preserves_order && pool.is_parallel()).then(ResponseOrder::default),
            rate_claims: is_limited.then(|| RateClaims::new(Arc::new(this.clone()))),
            inbox: Arc::new(this),
            timer: timer.map(Rc::new),
            wakes_at: None,
            config,
            stats,
            scheduler: match &shard {
                Some(shard) => shard.scheduler(),
                None => scheduler,
            },
            stateful: is_stateful.then(|| StatefulParts::new(&pool, sequences).into()),
            pool,
            waits,
            shard,
            health,
            is_rebalancing: false,
            is_sweep_due: false,
        }
    });
    let shard = BatcherShard { batcher, immediate: key, shared };
    Ok(StartedActors { shard, instances, has_check })
}
