//! Finds deadlocks: calls of models that wait for each other, in a wait-for graph of one server.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::call_chain::{CallChain, describe_chain};

/// The number of an instance at the rate limiter.
pub type SeatId = u64;

/// Why an instance gets on with nothing, and not to the queue of its model either.
#[derive(Clone, Debug)]
pub enum InstanceWait {
    /// It executes, until its call is answered.
    Call(BlockedInstance),
    /// It rests: others hold a resource that it lacks, or that one before it lacks for which what it
    /// needs is kept.
    Resource {
        /// At least since then.
        since: Instant,
        /// Everybody who holds some of that resource.
        holders: Vec<SeatId>,
    },
}

/// An instance that does nothing until a call of its own is answered.
#[derive(Clone, Debug)]
pub struct BlockedInstance {
    /// Where it has what it holds from, if executions share resources.
    pub seat: Option<SeatId>,
    /// The call.
    pub call: Arc<CallChain>,
    /// Since when.
    pub since: Instant,
    /// Calls that wait for this instance to execute their requests, and since when.
    pub holds: Vec<(Arc<CallChain>, Instant)>,
}

/// What a model reports, at some moment, about who waits for it and what its instances wait for.
#[derive(Clone, Debug)]
pub struct ModelWaits {
    /// When that was so.
    pub observed: Instant,
    /// `None` for an instance that is not blocked: it gets on with its work, and to the queue.
    pub instances: Vec<Option<InstanceWait>>,
    /// Calls whose requests no instance was given yet, and since when they wait.
    pub queued: Vec<(Arc<CallChain>, Instant)>,
}

/// Who waits for whom among all models of one server: what those with blocked instances last
/// reported.
#[derive(Debug, Default)]
pub struct WaitGraph {
    models: Mutex<HashMap<usize, ModelWaits>>,
    next_id: AtomicUsize,
    /// When it was last searched, and what was found.
    searched: Mutex<Option<(Instant, Option<Victim>)>>,
}

/// A call that has to fail so that others go on, and why.
type Victim = (Arc<CallChain>, String);

/// With more models than this that wait, the graph is not searched at every report.
const MAX_SEARCHED_AT_ONCE: usize = 32;
/// But so often, for all of them.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);

impl WaitGraph {
    /// A place for the reports of one model.
    pub fn join(self: &Arc<Self>) -> WaitReporter {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        WaitReporter { graph: self.clone(), id, has_reported: false }
    }

    /// A call that has to fail so that others go on, and why. All who ask get the same one until
    /// what the models report has changed.
    fn victim(&self) -> Option<Victim> {
        let mut searched = self.searched.lock();
        let models = self.models.lock();
        if MAX_SEARCHED_AT_ONCE < models.len()
            && let Some((since, found)) = &*searched
            && since.elapsed() < SEARCH_INTERVAL
        {
            return found.clone();
        }
        let all: Vec<ModelWaits> = models.values().cloned().collect();
        drop(models);
        let found = WaitGraph::search(&all);
        *searched = Some((Instant::now(), found.clone()));
        found
    }

    fn search(all: &[ModelWaits]) -> Option<Victim> {
        let (cycle, lacks_resources) = find_cycle(all)?;
        let youngest = (0..cycle.len()).max_by_key(|index| cycle[*index].since)?;
        let (after, before) = (&cycle[youngest + 1..], &cycle[..=youngest]);
        // The call that fails is named last: it closes the cycle.
        let path: Vec<&CallChain> =
            after.iter().chain(before).map(|blocked| &*blocked.call).collect();
        let text = if lacks_resources {
            let calls = path.iter().map(|it| format!("'{}' calls '{}'", it.name, it.called));
            let calls = calls.collect::<Vec<_>>().join(", ");
            format!("requests wait for resources that their callers hold: {calls}")
        } else {
            format!("requests wait for each other: {}", describe_chain(path.iter(), &path[0].name))
        };
        Some((cycle[youngest].call.clone(), text))
    }
}

/// Reports for one model; dropping it takes its last report out of the graph.
#[derive(Debug)]
pub struct WaitReporter {
    graph: Arc<WaitGraph>,
    id: usize,
    has_reported: bool,
}

impl WaitReporter {
    /// Replaces what the model reported before, and answers the call that has to fail, of whatever
    /// model it is, if calls wait for each other for ever.
    pub fn report(&mut self, waits: ModelWaits) -> Option<(Arc<CallChain>, String)> {
        self.graph.models.lock().insert(self.id, waits);
        self.has_reported = true;
        self.graph.victim()
    }

    /// None of the model's instances is blocked any more. Free if none was.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.has_reported) {
            self.graph.models.lock().remove(&self.id);
        }
    }
}

impl Drop for WaitReporter {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A call by its address: the same call is the same `Arc` in every report.
type CallId = *const CallChain;

/// A blocked instance, and the places where its call waits.
struct Waiting {
    blocked: BlockedInstance,
    places: Vec<Place>,
}

/// Where a call waits.
#[derive(Clone)]
struct Place {
    /// One of these has to be answered first.
    first: Vec<CallId>,
    /// Is it for what those who made them hold?
    lacks_resources: bool,
}

impl InstanceWait {
    fn since(&self) -> Instant {
        match self {
            InstanceWait::Call(blocked) => blocked.since,
            InstanceWait::Resource { since, .. } => *since,
        }
    }

    fn call(&self) -> Option<&BlockedInstance> {
        match self {
            InstanceWait::Call(blocked) => Some(blocked),
            InstanceWait::Resource { .. } => None,
        }
    }

    /// What has to be answered before the instance gets on; `None` if somebody else may do
    /// something about it.
    fn first(&self, seats: &HashMap<SeatId, CallId>) -> Option<Vec<CallId>> {
        match self {
            InstanceWait::Call(blocked) => Some(vec![Arc::as_ptr(&blocked.call)]),
            InstanceWait::Resource { holders, .. } => {
                let calls = holders.iter().map(|it| seats.get(it).copied());
                calls.collect::<Option<Vec<CallId>>>().filter(|it| !it.is_empty())
            }
        }
    }
}

/// Blocked instances, each of which waits for a call of the next one, and the last one for the
/// first; and whether it is for resources that they wait.
///
/// Models do not report at the same moment. But what each of them reports was so from some time on,
/// and only what had begun before the first of them reported counts: all that was so at that
/// moment. A call that only waits for others to be answered, which wait for it, does so ever after.
/// Who holds a resource when another one lacks it, and is blocked since that moment, held it then.
fn find_cycle(all: &[ModelWaits]) -> Option<(Vec<BlockedInstance>, bool)> {
    let moment = all.iter().map(|waits| waits.observed).min()?;
    let was = |since: &Instant| *since <= moment;
    let waits_then =
        |instance: &Option<InstanceWait>| instance.clone().filter(|wait| was(&wait.since()));
    let (mut calls, mut seats) = (HashMap::new(), HashMap::new());
    for wait in all.iter().flat_map(|waits| waits.instances.iter().filter_map(waits_then)) {
        if let InstanceWait::Call(blocked) = wait {
            let id: CallId = Arc::as_ptr(&blocked.call);
            seats.extend(blocked.seat.map(|seat| (seat, id)));
            calls.insert(id, Waiting { blocked, places: Vec::new() });
        }
    }
    let mut note = |call: &Arc<CallChain>, since: &Instant, place: Place| {
        if was(since)
            && let Some(waiting) = calls.get_mut(&Arc::as_ptr(call))
        {
            waiting.places.push(place);
        }
    };
    for waits in all {
        let instances: Vec<Option<InstanceWait>> = waits.instances.iter().map(waits_then).collect();
        for instance in instances.iter().flatten().filter_map(InstanceWait::call) {
            for (call, since) in &instance.holds {
                let first = vec![Arc::as_ptr(&instance.call)];
                note(call, since, Place { first, lacks_resources: false });
            }
        }
        // A queue moves on as long as one instance is not blocked.
        let first = instances.iter().map(|it| it.as_ref()?.first(&seats));
        let Some(first) = first.collect::<Option<Vec<_>>>() else { continue };
        let lacks_resources = instances.iter().flatten().any(|it| it.call().is_none());
        let place = Place { first: first.concat(), lacks_resources };
        for (call, since) in &waits.queued {
            note(call, since, place.clone());
        }
    }
    follow(prune(calls))
}

/// What is left when those that get on are taken out, and those that only wait for them.
fn prune(mut calls: HashMap<CallId, Waiting>) -> HashMap<CallId, Waiting> {
    loop {
        let is_left = |call: &CallId| calls.contains_key(call);
        let gets_on =
            |waiting: &Waiting| !waiting.places.iter().any(|it| it.first.iter().all(is_left));
        let free: Vec<CallId> =
            calls.iter().filter(|(_, waiting)| gets_on(waiting)).map(|(id, _)| *id).collect();
        if free.is_empty() {
            return calls;
        }
        free.iter().for_each(|id| drop(calls.remove(id)));
    }
}

/// Walks from one call to one it waits for until it meets a call again: that is a cycle.
fn follow(calls: HashMap<CallId, Waiting>) -> Option<(Vec<BlockedInstance>, bool)> {
    let place = |id: &CallId| {
        let mut places = calls.get(id)?.places.iter();
        places.find(|place| place.first.iter().all(|it| calls.contains_key(it)))
    };
    // Always the same of several cycles.
    let mut id = calls.keys().min().copied()?;
    let mut path = Vec::new();
    while !path.contains(&id) {
        path.push(id);
        id = place(&id)?.first.iter().min().copied()?;
    }
    let first = path.iter().position(|passed| *passed == id)?;
    let lacks_resources = path[first..].iter().filter_map(place).any(|it| it.lacks_resources);
    let cycle = path[first..].iter().filter_map(|id| calls.get(id));
    Some((cycle.map(|waiting| waiting.blocked.clone()).collect(), lacks_resources))
}

#[cfg(test)]
mod tests;
