//! Brings one model to where it should be, given what became of the models it runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Instant,
};

use futures_util::future::join_all;

use super::{
    definition::{Content, Definition},
    graph::{Upstream, unmet},
    load,
    node::{Failure, Loaded, NO_VERSION, Node, UNLOADED},
    world::World,
};
use troupe_base::{
    config::ModelConfig,
    error::{Error, Result},
    model::{Model, ModelParts},
};

/// Everything a visit needs beside the node.
pub(super) struct Visit {
    /// The model.
    pub(super) name: Arc<str>,
    /// What was found on disk, if this operation looked.
    pub(super) read: Option<Result<Arc<Definition>, Failure>>,
    /// Why it needs itself, if it does.
    pub(super) ring: Option<String>,
    /// The models it runs, now or next.
    pub(super) steps: BTreeMap<Arc<str>, Served>,
}

/// A model as ensembles see it.
#[derive(Clone)]
pub(super) struct Served {
    /// What to say about it.
    pub(super) upstream: Upstream,
    /// Versions that serve.
    pub(super) models: BTreeMap<i64, Arc<Model>>,
}

/// How a visit ended.
pub(super) struct Visited {
    /// Whether the model is where it should be.
    pub(super) result: Result<(), Failure>,
    /// Versions that came up.
    pub(super) loaded: Vec<i64>,
    /// This operation looked at its files.
    pub(super) is_read: bool,
    /// Something is different now, or was asked for.
    pub(super) is_news: bool,
    /// Versions that were taken out; requests may still run on them.
    pub(super) gone: Vec<(i64, Weak<Model>)>,
    /// When the visit began.
    pub(super) since: Instant,
}

/// Loads, reloads, unloads, or leaves it as it is.
pub(super) async fn visit(world: &World, this: Visit, node: &mut Node) -> Visited {
    let (since, before) = (Instant::now(), node.failure.clone());
    let served = node.loaded.iter().map(|(number, it)| (*number, Arc::downgrade(&it.model)));
    let mut gone: Vec<_> = served.collect();
    let settled = settle(world, &this, node).await;
    gone.retain(|(number, _)| !node.loaded.contains_key(number));
    let loaded = settled.as_ref().map_or(Vec::new(), Clone::clone);
    let result = settled.map(|_| ());
    let is_read = this.read.is_some();
    let is_news = is_read || !loaded.is_empty() || result.as_ref().err() != before.as_ref();
    Visited { result, loaded, is_read, is_news, gone, since }
}

async fn settle(world: &World, this: &Visit, node: &mut Node) -> Result<Vec<i64>, Failure> {
    let definition = match (&this.read, &node.definition) {
        // A slip of one client changes nothing for others.
        (Some(Err(failure @ Failure::Refused(_))), _) => return Err(failure.clone()),
        (Some(Err(Failure::Missing)), _) => {
            node.failure = Some(Failure::Missing);
            world.publisher.show(&this.name, node);
            return Err(Failure::Missing);
        }
        _ if !node.is_wanted() => {
            unload(world, this, node);
            return Ok(Vec::new());
        }
        (Some(Err(failure)), _) => return Err(fail(world, this, node, failure.clone().into())),
        (Some(Ok(definition)), _) => definition.clone(),
        (None, Some(definition)) => definition.clone(),
        (None, None) => return node.failure.clone().map_or(Ok(Vec::new()), Err),
    };
    let before = node.definition.replace(definition.clone());
    let attempt = match &definition.content {
        // Only its own files can change what became of it.
        Content::Single(_) if this.read.is_none() => {
            return node.failure.clone().map_or(Ok(Vec::new()), Err);
        }
        _ if definition.versions.is_empty() => Err(no_version(this).into()),
        Content::Single(_) => single(world, this, node, &definition).await,
        Content::Ensemble(config, _) => {
            let found = ensemble(world, this, node, config).await;
            found.map_err(|problems| Failure::Invalid(problems.join("; ")).into())
        }
    };
    match attempt {
        Ok(came_up) => Ok(succeed(world, this, node, came_up)),
        Err(failed) => {
            let failure = fail(world, this, node, failed);
            // What a client brought and failed is not tried again by itself.
            if definition.is_override {
                node.definition = before;
            }
            Err(failure)
        }
    }
}

/// Versions that came up.
type CameUp = Vec<(i64, Arc<Model>)>;

/// Why nothing came up; where the versions had different reasons, these too.
struct Failed {
    failure: Failure,
    versions: BTreeMap<i64, String>,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed { failure, versions: BTreeMap::new() }
    }
}

async fn single(
    world: &World,
    this: &Visit,
    node: &Node,
    definition: &Arc<Definition>,
) -> Result<CameUp, Failed> {
    let is_changed = |(number, stamp): &(&i64, &u64)| {
        let stamp = (definition.stamp, **stamp);
        node.loaded.get(number).is_none_or(|it| it.stamp != stamp)
    };
    let changed: Vec<i64> = definition.versions.iter().filter(is_changed).map(|it| *it.0).collect();
    if changed.is_empty() {
        return Ok(Vec::new());
    }
    world.publisher.loading(&this.name, &changed);
    let opened = join_all(changed.iter().map(|it| open(world, definition, *it))).await;
    gather(changed.into_iter().zip(opened).collect())
}

async fn open(world: &World, definition: &Arc<Definition>, version: i64) -> Result<Arc<Model>> {
    let mut left = world.settings.retry_count;
    loop {
        let permit = world.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Error::unavailable("models are not loaded any more"))?;
        tracing::info!("loading `{}` version {version}", definition.name);
        match world.open.single(definition.clone(), version, permit).await {
            Err(error) if 0 < left => {
                let name = &definition.name;
                tracing::warn!("loading `{name}` version {version} again, it failed: {error}");
                left -= 1;
            }
            result => return result,
        }
    }
}

/// All or none: a model is updated as one.
fn gather(opened: Vec<(i64, Result<Arc<Model>>)>) -> Result<CameUp, Failed> {
    let mut came_up = Vec::new();
    let mut versions = BTreeMap::new();
    let mut text = String::new();
    for (number, result) in opened {
        match result {
            Ok(model) => came_up.push((number, model)),
            Err(error) => {
                text += &format!("version {number} is at UNAVAILABLE state: {error};");
                versions.insert(number, error.to_string());
            }
        }
    }
    if versions.is_empty() {
        return Ok(came_up);
    }
    versions.extend(came_up.iter().map(|(number, _)| (*number, UNLOADED.to_owned())));
    Err(Failed { failure: Failure::NotLoaded(text), versions })
}

async fn ensemble(
    world: &World,
    this: &Visit,
    node: &Node,
    config: &Arc<ModelConfig>,
) -> Result<CameUp, Vec<String>> {
    let Some(definition) = &node.definition else { return Ok(Vec::new()) };
    if let Some(ring) = &this.ring {
        let ring = config.source_map.problem("ensemble_scheduling", ring.as_str());
        return Err(vec![ring.message()]);
    }
    let needed = definition.needed();
    let upstream =
        |name: &str| this.steps.get(name).map_or(Upstream::Missing, |it| it.upstream.clone());
    let problems = unmet(&this.name, needed, &upstream);
    if !problems.is_empty() {
        return Err(problems.iter().map(|it| it.problem(config).message()).collect());
    }
    let steps: Vec<_> =
        needed.iter().filter_map(|it| this.step(&it.model, it.version)).cloned().collect();
    let is_changed = |(number, stamp): &(&i64, &u64)| {
        let is_same = |it: &Loaded| {
            it.stamp == (definition.stamp, **stamp) && are_same(&it.model.steps, &steps)
        };
        !node.loaded.get(number).is_some_and(is_same)
    };
    let changed = definition.versions.iter().filter(is_changed).map(|it| *it.0);
    let mut came_up = Vec::new();
    for number in changed {
        world.publisher.loading(&this.name, &[number]);
        let parts = ModelParts { steps: steps.clone(), ..load::parts(config.clone(), number) };
        came_up.push((number, world.open.ensemble(definition.clone(), parts).await?));
    }
    Ok(came_up)
}

impl Visit {
    fn step(&self, name: &str, version: i64) -> Option<&Arc<Model>> {
        let models = &self.steps.get(name)?.models;
        match version {
            -1 => models.values().next_back(),
            number => models.get(&number),
        }
    }

    /// Whether an ensemble that serves runs only models that still serve.
    fn is_intact(&self, node: &Node) -> bool {
        let is_served = |step: &Arc<Model>| {
            let served = self.steps.get(step.name());
            served.is_some_and(|it| it.models.values().any(|it| Arc::ptr_eq(it, step)))
        };
        node.loaded.values().flat_map(|it| &it.model.steps).all(is_served)
    }
}

fn are_same(a: &[Arc<Model>], b: &[Arc<Model>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

fn no_version(this: &Visit) -> Failure {
    let name = &this.name;
    Failure::NotLoaded(format!("{NO_VERSION} under the version policy of model '{name}'"))
}

fn succeed(
    world: &World,
    this: &Visit,
    node: &mut Node,
    came_up: Vec<(i64, Arc<Model>)>,
) -> Vec<i64> {
    let numbers = came_up.iter().map(|it| it.0).collect();
    let Some(definition) = node.definition.clone() else { return numbers };
    node.failure = None;
    for (number, model) in came_up {
        let stamp = (definition.stamp, definition.versions[&number]);
        node.loaded.insert(number, Loaded { stamp, model });
    }
    let is_picked = |number: &i64| definition.versions.contains_key(number);
    let gone: Vec<i64> = node.loaded.keys().copied().filter(|it| !is_picked(it)).collect();
    node.loaded.retain(|number, _| is_picked(number));
    node.down.retain(|number, reason| reason == UNLOADED && !is_picked(number));
    node.down.extend(gone.iter().map(|it| (*it, UNLOADED.to_owned())));
    world.publisher.show(&this.name, node);
    numbers
}

/// What serves goes on serving, unless it is an ensemble that lost a model.
fn fail(world: &World, this: &Visit, node: &mut Node, failed: Failed) -> Failure {
    let Failed { failure, mut versions } = failed;
    let reason = failure.reason();
    if !matches!(failure, Failure::NotLoaded(_)) {
        let known = node.definition.iter().flat_map(|it| it.versions.keys());
        versions.extend(known.map(|it| (*it, reason.clone())));
    }
    if !this.is_intact(node) {
        node.take_down(&reason);
    }
    node.down.retain(|number, reason| reason == UNLOADED || node.loaded.contains_key(number));
    versions.retain(|number, _| !node.loaded.contains_key(number));
    node.down.extend(versions);
    node.failure = Some(failure.clone());
    world.publisher.show(&this.name, node);
    failure
}

fn unload(world: &World, this: &Visit, node: &mut Node) {
    if node.loaded.is_empty() && node.down.is_empty() && node.failure.is_none() {
        return;
    }
    node.take_down(UNLOADED);
    node.failure = None;
    world.publisher.show(&this.name, node);
}
