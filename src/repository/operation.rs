//! Runs one operation over the models it was given: who is wanted now, and in which order they load.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};

use super::{
    definition::Definition,
    graph::Graph,
    node::{Failure, Node, Wanted},
    poll::{Action, Polled},
    visit::{Served, Visit, Visited, visit},
    world::World,
};
use troupe_base::model::Model;

/// Models by name.
pub(super) type Nodes = BTreeMap<Arc<str>, Node>;

/// How each of the models an operation was about ended.
pub(super) type Results = BTreeMap<Arc<str>, Result<(), Failure>>;

/// Does what `action` asks with `nodes`, which nobody else touches meanwhile.
pub(super) async fn run(
    world: &World,
    mut nodes: Nodes,
    mut polled: Polled,
    action: &Action,
) -> (Nodes, Results) {
    for name in polled.read.keys() {
        nodes.entry(name.clone()).or_default();
    }
    let graph = graph(&nodes, &polled);
    want(&mut nodes, &graph, &polled, action);
    let mut run = Run {
        rings: graph.rings(),
        served: nodes.iter().map(|(name, node)| (name.clone(), served(node))).collect(),
        waiting: BTreeMap::new(),
        progress: Progress { done: 0, total: polled.read.len() },
        results: Results::new(),
        gone: Vec::new(),
        graph,
    };
    let mut working = FuturesUnordered::new();
    let mut ready: Vec<Arc<str>> = run.start(&nodes);
    loop {
        for name in std::mem::take(&mut ready) {
            let Some(node) = nodes.remove(&name) else { continue };
            let read = polled.read.remove(&name);
            working.push(run.visit(world, name, node, read));
        }
        let Some((name, node, visited)) = working.next().await else { break };
        run.served.insert(name.clone(), served(&node));
        nodes.insert(name.clone(), node);
        ready = run.done(&name, visited);
    }
    world.publisher.folders(&polled.folders);
    let Run { results, gone, .. } = run;
    for (name, number, rest) in gone {
        world.publisher.unloading(&name, number, rest);
    }
    (nodes, results)
}

type Working<'a> = LocalBoxFuture<'a, (Arc<str>, Node, Visited)>;

struct Run {
    graph: Graph,
    rings: BTreeMap<Arc<str>, String>,
    /// What ensembles see, kept while the nodes are worked on.
    served: BTreeMap<Arc<str>, Served>,
    /// Steps each ensemble still waits for.
    waiting: BTreeMap<Arc<str>, usize>,
    progress: Progress,
    results: Results,
    gone: Vec<(Arc<str>, i64, Weak<Model>)>,
}

/// For the log: loading may take minutes.
struct Progress {
    done: usize,
    total: usize,
}

impl Run {
    /// Models that wait for nobody; those of a ring would wait for ever.
    fn start(&mut self, nodes: &Nodes) -> Vec<Arc<str>> {
        let mut ready = Vec::new();
        for name in self.graph.order() {
            let is_known = |step: &Arc<str>| nodes.contains_key(step);
            let steps = self.graph.steps(&name).iter().filter(|it| is_known(it)).count();
            if steps == 0 || self.rings.contains_key(&name) {
                ready.push(name);
            } else {
                self.waiting.insert(name, steps);
            }
        }
        ready
    }

    fn visit<'a>(
        &self,
        world: &'a World,
        name: Arc<str>,
        mut node: Node,
        read: Option<Result<Arc<Definition>, Failure>>,
    ) -> Working<'a> {
        let steps = self.graph.steps(&name).into_iter().chain(node.running());
        let steps: BTreeSet<_> = steps.collect();
        let served =
            |it: &Arc<str>| self.served.get(it).cloned().map(|served| (it.clone(), served));
        let this = Visit {
            name: name.clone(),
            read,
            ring: self.rings.get(&name).cloned(),
            steps: steps.iter().filter_map(served).collect(),
        };
        Box::pin(async move {
            let visited = visit(world, this, &mut node).await;
            (name, node, visited)
        })
    }

    /// Who can be visited now that `name` is through.
    fn done(&mut self, name: &Arc<str>, visited: Visited) -> Vec<Arc<str>> {
        self.progress.tell(name, &visited);
        let gone = visited.gone.into_iter().map(|(number, rest)| (name.clone(), number, rest));
        self.gone.extend(gone);
        self.results.insert(name.clone(), visited.result);
        let mut ready = Vec::new();
        for ensemble in self.graph.ensembles(name) {
            let Some(steps) = self.waiting.get_mut(&ensemble) else { continue };
            *steps -= 1;
            if *steps == 0 {
                self.waiting.remove(&ensemble);
                ready.push(ensemble);
            }
        }
        ready
    }
}

impl Progress {
    fn tell(&mut self, name: &str, visited: &Visited) {
        let count = if visited.is_read {
            self.done += 1;
            format!(" ({} of {})", self.done, self.total)
        } else {
            String::new()
        };
        let seconds = visited.since.elapsed().as_secs_f64();
        match &visited.result {
            _ if !visited.is_news => (),
            Ok(()) if visited.loaded.is_empty() => (),
            Ok(()) => {
                let versions: Vec<_> = visited.loaded.iter().map(i64::to_string).collect();
                let versions = versions.join(", ");
                tracing::info!("loaded `{name}` version {versions} in {seconds:.2} s{count}");
            }
            Err(failure @ (Failure::Missing | Failure::Refused(_))) => {
                tracing::debug!("failed to load `{name}`{count}: {}", failure.reason());
            }
            Err(failure) => {
                tracing::error!("failed to load `{name}`{count}: {}", failure.reason());
            }
        }
    }
}

fn served(node: &Node) -> Served {
    let models = node.loaded.iter().map(|(number, it)| (*number, it.model.clone())).collect();
    Served { upstream: node.upstream(), models }
}

/// What needs what, by the newest configs.
fn graph(nodes: &Nodes, polled: &Polled) -> Graph {
    let steps = |name: &Arc<str>, node: &Node| -> Vec<Arc<str>> {
        let needed = match polled.read.get(name) {
            Some(Ok(definition)) => definition.needed(),
            _ => node.needed(),
        };
        needed.iter().map(|it| it.model.clone()).collect()
    };
    let edges: Vec<_> = nodes.iter().map(|(name, node)| (name, steps(name, node))).collect();
    Graph::new(edges.iter().map(|(name, steps)| (*name, steps.as_slice())))
}

/// Notes who asked for whom.
fn want(nodes: &mut Nodes, graph: &Graph, polled: &Polled, action: &Action) {
    let mut next: Vec<_> = polled.targets.iter().cloned().collect();
    match action {
        Action::LoadAll | Action::Load(_) => {
            let is_there = |it: &&Arc<str>| {
                !matches!(polled.read.get(*it), Some(Err(Failure::Missing | Failure::Refused(_))))
            };
            for name in polled.targets.iter().filter(is_there) {
                nodes.entry(name.clone()).or_default().wanted = Wanted::Explicitly;
            }
            let mut seen = BTreeSet::new();
            while let Some(name) = next.pop() {
                let Some(node) = nodes.get_mut(&name).filter(|_| seen.insert(name.clone())) else {
                    continue;
                };
                if node.wanted == Wanted::No && !polled.targets.contains(&name) {
                    node.wanted = Wanted::Implicitly;
                }
                next.extend(graph.steps(&name));
            }
        }
        Action::Unload { name, dependents } => {
            let Some(node) = nodes.get_mut(name) else { return };
            node.wanted = Wanted::No;
            while let (true, Some(name)) = (*dependents, next.pop()) {
                for step in graph.steps(&name) {
                    if release(nodes, graph, &step) {
                        next.push(step);
                    }
                }
            }
        }
    }
}

/// Gives up a step that was only loaded for ensembles, once none of them is wanted.
fn release(nodes: &mut Nodes, graph: &Graph, step: &Arc<str>) -> bool {
    let is_wanted = |it: &Arc<str>| nodes.get(it).is_some_and(Node::is_wanted);
    let is_needed = graph.ensembles(step).iter().any(is_wanted);
    match nodes.get_mut(step) {
        Some(node) if node.wanted == Wanted::Implicitly && !is_needed => {
            node.wanted = Wanted::No;
            true
        }
        _ => false,
    }
}
