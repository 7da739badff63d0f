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

/// An instance that does nothing until a call of its own is answered.
#[derive(Clone, Debug)]
pub struct BlockedInstance {
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
    pub instances: Vec<Option<BlockedInstance>>,
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
        let cycle = find_cycle(all)?;
        let youngest = (0..cycle.len()).max_by_key(|index| cycle[*index].since)?;
        let (after, before) = (&cycle[youngest + 1..], &cycle[..=youngest]);
        // The call that fails is named last: it closes the cycle.
        let path: Vec<&CallChain> =
            after.iter().chain(before).map(|blocked| &*blocked.call).collect();
        let text =
            format!("requests wait for each other: {}", describe_chain(path.iter(), &path[0].name));
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

/// A blocked instance, and for each place where its call waits the calls of which one has to be
/// answered first.
struct Waiting {
    blocked: BlockedInstance,
    places: Vec<Vec<CallId>>,
}

/// Blocked instances, each of which waits for a call of the next one, and the last one for the
/// first.
///
/// Models do not report at the same moment. But what each of them reports was so from some time on,
/// and only what had begun before the first of them reported counts: all that was so at that
/// moment. A call that only waits for others to be answered, which wait for it, does so ever after.
fn find_cycle(all: &[ModelWaits]) -> Option<Vec<BlockedInstance>> {
    let moment = all.iter().map(|waits| waits.observed).min()?;
    let was = |since: &Instant| *since <= moment;
    let blocked =
        |instance: &Option<BlockedInstance>| instance.clone().filter(|blocked| was(&blocked.since));
    let mut calls: HashMap<CallId, Waiting> = HashMap::new();
    for waits in all {
        for blocked in waits.instances.iter().filter_map(blocked) {
            calls.insert(Arc::as_ptr(&blocked.call), Waiting { blocked, places: Vec::new() });
        }
    }
    for waits in all {
        let instances: Vec<Option<BlockedInstance>> = waits.instances.iter().map(blocked).collect();
        for instance in instances.iter().flatten() {
            for (call, _) in instance.holds.iter().filter(|(_, since)| was(since)) {
                if let Some(waiting) = calls.get_mut(&Arc::as_ptr(call)) {
                    waiting.places.push(vec![Arc::as_ptr(&instance.call)]);
                }
            }
        }
        // A queue moves on as long as one instance is not blocked.
        let Some(instances) = instances.into_iter().collect::<Option<Vec<BlockedInstance>>>()
        else {
            continue;
        };
        for (call, _) in waits.queued.iter().filter(|(_, since)| was(since)) {
            if let Some(waiting) = calls.get_mut(&Arc::as_ptr(call)) {
                let first = instances.iter().map(|blocked| Arc::as_ptr(&blocked.call));
                waiting.places.push(first.collect());
            }
        }
    }
    follow(prune(calls))
}

/// What is left when those that get on are taken out, and those that only wait for them.
fn prune(mut calls: HashMap<CallId, Waiting>) -> HashMap<CallId, Waiting> {
    loop {
        let is_left = |call: &CallId| calls.contains_key(call);
        let gets_on =
            |waiting: &Waiting| !waiting.places.iter().any(|place| place.iter().all(is_left));
        let free: Vec<CallId> =
            calls.iter().filter(|(_, waiting)| gets_on(waiting)).map(|(id, _)| *id).collect();
        if free.is_empty() {
            return calls;
        }
        free.iter().for_each(|id| drop(calls.remove(id)));
    }
}

/// Walks from one call to one it waits for until it meets a call again: that is a cycle.
fn follow(calls: HashMap<CallId, Waiting>) -> Option<Vec<BlockedInstance>> {
    let next = |id: &CallId| {
        let mut places = calls.get(id)?.places.iter();
        places.find(|place| place.iter().all(|it| calls.contains_key(it)))?.iter().min().copied()
    };
    // Always the same of several cycles.
    let mut id = calls.keys().min().copied()?;
    let mut path = Vec::new();
    while !path.contains(&id) {
        path.push(id);
        id = next(&id)?;
    }
    let first = path.iter().position(|passed| *passed == id)?;
    let cycle = path[first..].iter().filter_map(|id| calls.get(id));
    Some(cycle.map(|waiting| waiting.blocked.clone()).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What models report, from text: `a: b1 x` says that the one instance of `a` is blocked in its
    /// call `b1` to `b`, and `-` that it is not; after `|` stand the calls in the queue, and in
    /// brackets those an instance holds. A number after `@` says since when, 1 if it is missing.
    fn reports(models: &[(&str, u64)]) -> Vec<ModelWaits> {
        let start = Instant::now();
        let at = |number: u64| start + Duration::from_secs(number);
        let mut known: HashMap<String, Arc<CallChain>> = HashMap::new();
        let mut call = |text: &str, name: &str| {
            let (label, since) = text.split_once('@').unwrap_or((text, "1"));
            let made = || Arc::new(CallChain::new(name.into(), 1, label[..1].into()));
            (known.entry(label.into()).or_insert_with(made).clone(), at(since.parse().unwrap()))
        };
        // Who makes a call is known from the instance that is blocked in it.
        let heads = |text: &str| -> (String, Vec<String>) {
            let (name, rest) = text.split_once(": ").unwrap();
            let instances = rest.split(" | ").next().unwrap();
            (name.into(), instances.split(' ').map(str::to_owned).collect())
        };
        for (text, _) in models {
            let (name, instances) = heads(text);
            for it in instances.iter().filter(|it| *it != "-") {
                call(it.split('[').next().unwrap(), &name);
            }
        }
        let waits = |(text, observed): &(&str, u64)| {
            let (name, instances) = heads(text);
            let mut instance = |it: &String| {
                let (made, holds) = it.split_once('[').unwrap_or((it, "]"));
                let holds = holds.trim_end_matches(']').split(',').filter(|it| !it.is_empty());
                let holds = holds.map(|it| call(it, "?")).collect();
                let (call, since) = (made != "-").then(|| call(made, &name))?;
                Some(BlockedInstance { call, since, holds })
            };
            let instances = instances.iter().map(&mut instance).collect();
            let queued = text.split_once(" | ").map_or("", |it| it.1).split_whitespace();
            let queued = queued.map(|it| call(it, "?")).collect();
            ModelWaits { observed: at(*observed), instances, queued }
        };
        models.iter().map(waits).collect()
    }

    fn check(models: &[&str], expected: &[&str]) {
        check_at(&models.iter().map(|it| (*it, 9)).collect::<Vec<_>>(), expected);
    }

    /// Which calls are found, as `model>asked`, from the least on.
    fn check_at(models: &[(&str, u64)], expected: &[&str]) {
        let found = find_cycle(&reports(models)).unwrap_or_default();
        let mut found: Vec<_> =
            found.iter().map(|it| format!("{}>{}", it.call.name, it.call.called)).collect();
        found.sort();
        assert_eq!(found, expected, "{models:?}");
    }

    #[test]
    fn two_models_that_call_each_other_are_found() {
        check(&["a: b1 | a1", "b: a1 | b1"], &["a>b", "b>a"]);
    }

    #[test]
    fn a_call_that_is_executed_waits_for_nobody() {
        check(&["a: b1", "b: -"], &[]);
        check(&["a: b1 | a1", "b: a1"], &[]);
    }

    #[test]
    fn a_free_instance_is_enough() {
        check(&["a: b1 - | a1", "b: a1 | b1"], &[]);
        check(&["a: b1 b2 | a1", "b: a1 - | b1 b2"], &[]);
        check(&["a: b1 c1 | a1", "b: a1 | b1", "c: -[c1]"], &[]);
    }

    #[test]
    fn all_instances_have_to_be_stuck() {
        check(&["a: b1 b2 | a1", "b: a1 | b1 b2"], &["a>b", "b>a"]);
    }

    #[test]
    fn longer_circles_are_found_through_executions() {
        check(&["a: c1 | a1", "c: b1[c1]", "b: a1 | b1"], &["a>c", "b>a", "c>b"]);
    }

    #[test]
    fn those_who_only_wait_for_the_circle_are_not_in_it() {
        check(&["x: a2", "a: b1 | a1 a2", "b: a1 | b1"], &["a>b", "b>a"]);
    }

    #[test]
    fn what_was_not_at_the_same_moment_proves_nothing() {
        check_at(&[("a: b1@5 | a1", 9), ("b: a1 | b1@5", 4)], &[]);
        check_at(&[("a: b1@3 | a1@3", 9), ("b: a1 | b1@3", 4)], &["a>b", "b>a"]);
    }

    #[test]
    fn the_cycle_is_named_and_ends_with_the_youngest_call() {
        let graph = Arc::new(WaitGraph::default());
        let mut reporters = [graph.join(), graph.join()];
        let mut victim = None;
        let reports = reports(&[("a: b1@2 | a1", 9), ("b: a1 | b1@2", 9)]);
        for (reporter, waits) in reporters.iter_mut().zip(reports) {
            victim = reporter.report(waits);
        }
        let (call, text) = victim.unwrap();
        assert_eq!(&*call.name, "a");
        assert_eq!(text, "requests wait for each other: 'b' calls 'a', which calls 'b'");
        reporters[0].clear();
        assert!(graph.victim().is_none());
    }

    #[test]
    fn a_reporter_that_is_dropped_takes_its_report_back() {
        let graph = Arc::new(WaitGraph::default());
        let mut first = graph.join();
        let mut second = graph.join();
        let [a, b] = reports(&[("a: b1 | a1", 9), ("b: a1 | b1", 9)]).try_into().unwrap();
        assert!(first.report(a).is_none());
        assert!(second.report(b).is_some());
        drop(first);
        assert!(graph.victim().is_none());
    }

    #[test]
    fn graphs_of_two_servers_are_apart() {
        let [a, b] = reports(&[("a: b1 | a1", 9), ("b: a1 | b1", 9)]).try_into().unwrap();
        let graphs = [Arc::new(WaitGraph::default()), Arc::new(WaitGraph::default())];
        assert!(graphs[0].join().report(a).is_none());
        assert!(graphs[1].join().report(b).is_none());
    }

    /// A report that searched all the others would cost more with each model that waits.
    #[test]
    fn where_many_wait_the_graph_is_searched_now_and_then() {
        let graph = Arc::new(WaitGraph::default());
        let join = |waits: ModelWaits| {
            let mut reporter = graph.join();
            reporter.report(waits);
            reporter
        };
        let circle = reports(&[("a: b1 | a1", 9), ("b: a1 | b1", 9)]);
        let _circle: Vec<_> = circle.into_iter().map(join).collect();
        let found_nothing_at = |moment: Instant| *graph.searched.lock() = Some((moment, None));
        let later = || Instant::now() + 1000 * SEARCH_INTERVAL;
        found_nothing_at(later());
        assert!(graph.victim().is_some(), "few are searched at once");
        let one = || reports(&[("c: d1", 9)]).remove(0);
        let _others: Vec<_> = (0..MAX_SEARCHED_AT_ONCE).map(|_| join(one())).collect();
        found_nothing_at(later());
        assert!(graph.victim().is_none(), "many are not");
        found_nothing_at(Instant::now() - SEARCH_INTERVAL);
        assert!(graph.victim().is_some(), "but when it is due");
    }
}
