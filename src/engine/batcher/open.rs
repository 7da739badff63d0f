//! Opens a model's instances and starts the batcher in front of them.

use std::{rc::Rc, sync::Arc, time::Duration};

use actix::Actor;
use futures_util::future::try_join_all;
use tokio::{sync::oneshot, task::spawn_blocking};

use super::{
    Batcher, Mailbox, Seat,
    concurrent::Concurrent,
    light::Weight,
    order::Order,
    readiness::Checkup,
    scheduler::{Direct, Dynamic, Scheduler},
    timer::Timer,
};
use crate::{
    engines::Engines,
    instance::{Local, Outside, OwnThread, Thread},
};
use troupe_base::{
    backend::{Backend, InstanceName, OpenLocal, Placement, StartRemote},
    config::{Batching, InstanceKind, ModelConfig},
    error::{Error, Result},
    model::Health,
    request::deadlock::WaitReporter,
    statistics::Statistics,
};

/// What a batcher is made of.
pub struct Setup {
    /// The completed config.
    pub config: Arc<ModelConfig>,
    /// Shared with the model.
    pub stats: Arc<Statistics>,
    /// Shared with the model.
    pub health: Arc<Health>,
    /// Opens the instances.
    pub backend: Backend,
    /// Where light actors live.
    pub engines: Engines,
}

/// An instance that is open but not yet at its place.
enum Opened {
    Here(Arc<dyn OpenLocal>, InstanceName),
    Thread(Thread),
    Outside(Arc<str>, StartRemote),
}

/// Opens all instances, in parallel; answers once every one is open, or with the first failure.
pub async fn start(setup: Setup) -> Result<Arc<Mailbox>> {
    let Setup { config, stats, health, backend, engines } = setup;
    let names = instance_names(&config, &health);
    if names.is_empty() {
        return Err(Error::invalid(format!("model '{}' has no instances", config.name)));
    }
    let instances: Vec<String> = names.iter().map(|it| it.name.clone()).collect();
    let opened = try_join_all(names.into_iter().map(|it| open(&backend, it, &config, &stats)));
    let opened = opened.await?;
    // Before a worker can be lost.
    instances.iter().for_each(|_| health.join());
    let (started, address) = oneshot::channel();
    let parts = (config.clone(), stats.clone(), engines.wait_graph().join());
    engines.pick().spawn_fn(move || {
        let (config, stats, waits) = parts;
        let made = batcher(config, stats, waits, opened).map(|batcher| {
            let has_check = batcher.has_check();
            (batcher.start(), has_check)
        });
        // Nobody waits any more when the load was given up.
        let _ = started.send(made);
    });
    let gone = |_| Error::internal(format!("the engine stopped while '{}' loaded", config.name));
    let (batcher, has_check) = address.await.map_err(gone)??;
    let checkup = has_check.then(Arc::<Checkup>::default);
    Ok(Arc::new(Mailbox { model: config.name.clone(), instances, batcher, stats, checkup }))
}

async fn open(
    backend: &Backend,
    name: InstanceName,
    config: &Arc<ModelConfig>,
    stats: &Arc<Statistics>,
) -> Result<Opened> {
    match backend {
        Backend::Local(local) if placement(&**local, config)? == Placement::Shared => {
            Ok(Opened::Here(local.clone(), name))
        }
        Backend::Local(local) => {
            let spawned = OwnThread::spawn(local.clone(), name, config.clone(), stats.clone());
            Ok(Opened::Thread(spawned.await?))
        }
        Backend::Remote(remote) => {
            let (remote, label) = (remote.clone(), name.name.clone());
            let opened = spawn_blocking(move || remote.open(&name)).await;
            let lost = |error| Error::internal(format!("opening '{label}' failed: {error}"));
            Ok(Opened::Outside((*label).into(), opened.map_err(lost)??))
        }
    }
}

/// The backend's choice, unless `parameters { key: "placement" }` says otherwise.
fn placement(backend: &dyn OpenLocal, config: &ModelConfig) -> Result<Placement> {
    match config.parameters.get("placement").map(String::as_str) {
        None => Ok(backend.placement()),
        Some("shared") => Ok(Placement::Shared),
        Some("own") => Ok(Placement::Own),
        Some(other) => Err(Error::invalid(format!(
            "parameter 'placement' of model '{}' is '{other}', expected 'shared' or 'own'",
            config.name
        ))),
    }
}

/// Called on the engine's thread.
fn batcher(
    config: Arc<ModelConfig>,
    stats: Arc<Statistics>,
    waits: WaitReporter,
    opened: Vec<Opened>,
) -> Result<Batcher> {
    let seat = |opened| match opened {
        Opened::Here(local, name) => {
            Local::open(&*local, &name, config.clone(), stats.clone()).map(Seat::Here)
        }
        Opened::Thread(thread) => Ok(Seat::Thread(thread)),
        Opened::Outside(name, start) => {
            Ok(Seat::Outside(Outside::new(name, start()?, config.clone(), stats.clone())))
        }
    };
    let seats: Vec<Seat> = opened.into_iter().map(seat).collect::<Result<_>>()?;
    let is_here = seats.iter().all(|it| matches!(it, Seat::Here(_)));
    let ragged = config.inputs.iter().map(|it| it.ragged).collect();
    let (scheduler, delay, ordered): (Box<dyn Scheduler>, _, _) = match &config.batching {
        Batching::Dynamic(dynamic) if 0 < config.max_batch_size => (
            Box::new(Dynamic::new(dynamic, config.max_batch_size, ragged)),
            dynamic.max_queue_delay,
            dynamic.preserve_ordering,
        ),
        // Without a batch dimension there is nothing to join.
        Batching::Dynamic(dynamic) => {
            (Box::<Direct>::default(), Duration::ZERO, dynamic.preserve_ordering)
        }
        Batching::Direct => (Box::<Direct>::default(), Duration::ZERO, false),
    };
    let works_ahead = matches!(config.batching, Batching::Direct);
    let concurrent = concurrent(&seats);
    let timer = (!delay.is_zero()).then(Timer::new).transpose();
    let timer = timer.map_err(|error| Error::internal(format!("no timer: {error}")))?;
    Ok(Batcher {
        is_immediate: is_here && matches!(config.batching, Batching::Direct),
        idle: match concurrent {
            Some(_) => (0..seats.len()).rev().collect(),
            None => idle(&seats, works_ahead),
        },
        works_ahead,
        order: (ordered && (1 < seats.len() || concurrent.is_some())).then(Order::default),
        concurrent,
        timer: timer.map(Rc::new),
        // A first guess; one execution at a time until it is known better.
        cost: super::HANDOVER,
        is_flushing: false,
        waits,
        weight: (!config.parameters.contains_key("placement")).then(Weight::unknown),
        config,
        stats,
        scheduler,
        seats,
    })
}

/// Of workers whose models are coroutines: all of them are, or none.
fn concurrent(seats: &[Seat]) -> Option<Concurrent> {
    let most = seats.iter().map(|it| match it {
        Seat::Outside(worker) => worker.concurrency(),
        Seat::Here(_) | Seat::Thread(_) => None,
    });
    let most = most.collect::<Option<Vec<_>>>()?.into_iter().min()?;
    Some(Concurrent::new(seats.len(), most))
}

impl Batcher {
    /// Has the model a say in whether it is ready?
    fn has_check(&self) -> bool {
        let has = |it: &Seat| matches!(it, Seat::Outside(worker) if worker.has_check());
        self.seats.iter().any(has)
    }
}

/// Every seat, as often as it can be given work.
fn idle(seats: &[Seat], works_ahead: bool) -> Vec<usize> {
    let places = |(index, seat): (usize, &Seat)| vec![index; seat.depth(works_ahead)];
    seats.iter().enumerate().rev().flat_map(places).collect()
}

fn instance_names(config: &ModelConfig, health: &Arc<Health>) -> Vec<InstanceName> {
    let mut names = Vec::new();
    for group in config.instance_groups.iter().filter(|it| !it.passive) {
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
