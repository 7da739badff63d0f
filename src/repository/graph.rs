//! The dependency graph of ensembles and the models they run: what is related, in which order to
//! load, and circular dependencies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use petgraph::{
    Direction::{Incoming, Outgoing},
    algo::{astar, tarjan_scc},
    graph::{DiGraph, NodeIndex},
    visit::{Dfs, UndirectedAdaptor},
};

/// Models of a cycle that an error tells at most.
const MAX_TOLD_MODELS: usize = 20;

/// Models and the models they run; an edge leads from a step's model to the ensemble that runs it.
pub(super) struct DependencyGraph {
    graph: DiGraph<Arc<str>, ()>,
    nodes: BTreeMap<Arc<str>, NodeIndex>,
}

impl DependencyGraph {
    /// Of models and what each of them runs; names that are only run become nodes too.
    pub(super) fn new(
        models: impl IntoIterator<Item = (Arc<str>, Vec<Arc<str>>)>,
    ) -> DependencyGraph {
        let mut graph = DependencyGraph { graph: DiGraph::new(), nodes: BTreeMap::new() };
        for (name, steps) in models {
            let ensemble = graph.node(&name);
            for step in steps {
                let step = graph.node(&step);
                graph.graph.update_edge(step, ensemble, ());
            }
        }
        graph
    }

    fn node(&mut self, name: &Arc<str>) -> NodeIndex {
        if let Some(node) = self.nodes.get(name) {
            return *node;
        }
        let node = self.graph.add_node(name.clone());
        self.nodes.insert(name.clone(), node);
        node
    }

    /// Everything connected with one of `names`, whichever way: what one operation may touch.
    pub(super) fn related(&self, names: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let mut found = names.clone();
        let undirected = UndirectedAdaptor(&self.graph);
        for start in names.iter().filter_map(|name| self.nodes.get(name)) {
            let mut walk = Dfs::new(undirected, *start);
            while let Some(node) = walk.next(undirected) {
                found.insert(self.graph[node].clone());
            }
        }
        found
    }

    /// The models `name` runs.
    pub(super) fn steps(&self, name: &str) -> Vec<Arc<str>> {
        self.neighbours(name, Incoming)
    }

    /// The ensembles that run `name`.
    pub(super) fn ensembles(&self, name: &str) -> Vec<Arc<str>> {
        self.neighbours(name, Outgoing)
    }

    /// The ensemble that runs `name`, if it is the only one; of one in another one, the outer one.
    pub(super) fn only_ensemble(&self, name: &str) -> Option<Arc<str>> {
        let mut found: Vec<Arc<str>> = Vec::new();
        loop {
            let ensembles = self.ensembles(found.last().map_or(name, |it| it));
            match <[Arc<str>; 1]>::try_from(ensembles) {
                // Not the ensembles of a circle again and again.
                Ok([next]) if !found.contains(&next) => found.push(next),
                _ => return found.pop(),
            }
        }
    }

    fn neighbours(&self, name: &str, direction: petgraph::Direction) -> Vec<Arc<str>> {
        let node = self.nodes.get(name).copied();
        let neighbours =
            node.into_iter().flat_map(|node| self.graph.neighbors_directed(node, direction));
        let names: BTreeSet<_> = neighbours.map(|node| self.graph[node].clone()).collect();
        names.into_iter().collect()
    }

    /// All names, steps before the ensembles that run them; those of a cycle in any order.
    pub(super) fn order(&self) -> Vec<Arc<str>> {
        // Tarjan's algorithm hands out successors first.
        tarjan_scc(&self.graph)
            .into_iter()
            .rev()
            .flatten()
            .map(|node| self.graph[node].clone())
            .collect()
    }

    /// Which model of a cycle runs which, behind a separator: from `first` back to it, by its step
    /// `last`.
    fn way_round(&self, first: &Arc<str>, last: &Arc<str>) -> String {
        let (from, to) = (self.nodes[first], self.nodes[last]);
        let way = astar(&self.graph, from, |node| node == to, |_| 1_usize, |_| 0);
        let steps = way.into_iter().flat_map(|(_, way)| way.into_iter().rev());
        let runs: Vec<&str> = steps.map(|node| &*self.graph[node]).collect();
        if MAX_TOLD_MODELS < runs.len() {
            return String::new();
        }
        format!(": {first} runs {}", runs.join(", which runs "))
    }

    /// Models that depend on themselves, each with Triton's text for its cycle.
    pub(super) fn cycles(&self) -> BTreeMap<Arc<str>, String> {
        let mut cycles = BTreeMap::new();
        for cycle in tarjan_scc(&self.graph) {
            let names: BTreeSet<_> = cycle.iter().map(|node| self.graph[*node].clone()).collect();
            let Some(first) = names.first() else { continue };
            let Some(last) = self.steps(first).into_iter().find(|step| names.contains(step)) else {
                continue;
            };
            let text = format!(
                "circular dependency between ensembles: {first} -> ... -> {last} -> {first}{}",
                self.way_round(first, &last)
            );
            cycles.extend(names.iter().map(|name| (name.clone(), text.clone())));
        }
        cycles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a: b c` is an ensemble `a` of `b` and `c`.
    fn graph(text: &[&str]) -> DependencyGraph {
        let line = |line: &&str| {
            let (name, steps) = line.split_once(':').unwrap();
            (name.into(), steps.split_whitespace().map(Arc::from).collect())
        };
        DependencyGraph::new(text.iter().map(line))
    }

    #[test]
    fn a_model_belongs_to_the_outermost_ensemble_that_alone_runs_it() {
        let graph = graph(&["outer: inner a", "inner: b c", "other: c", "round: round", "d:"]);
        let only = |name| graph.only_ensemble(name).map(|it| it.to_string());
        for (name, expected) in [
            ("a", Some("outer")),
            ("b", Some("outer")),
            ("inner", Some("outer")),
            ("c", None),
            ("d", None),
            ("outer", None),
            ("unknown", None),
            ("round", Some("round")),
        ] {
            assert_eq!(only(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn a_cycle_is_reported_for_each_of_its_models() {
        let cycles = |text: &[&str]| -> Vec<String> {
            graph(text).cycles().iter().map(|(name, cycle)| format!("{name}: {cycle}")).collect()
        };
        let text = "circular dependency between ensembles: ";
        assert_eq!(cycles(&["a: b", "b: c", "c:"]), [""; 0]);
        assert_eq!(cycles(&["m: m n"]), [format!("m: {text}m -> ... -> m -> m: m runs m")]);
        assert_eq!(
            cycles(&["a: b", "b: c", "c: a", "d: a"]),
            ["a", "b", "c"].map(|it| {
                let way = "a runs b, which runs c, which runs a";
                format!("{it}: {text}a -> ... -> b -> a: {way}")
            })
        );
    }

    #[test]
    fn steps_come_before_their_ensembles() {
        let order = graph(&["outer: inner mul", "inner: add mul", "mul:", "add:"]).order();
        let at = |name: &str| order.iter().position(|it| &**it == name).unwrap();
        assert!(at("add") < at("inner") && at("mul") < at("inner") && at("inner") < at("outer"));
    }

    #[test]
    fn related_models_are_those_of_common_ensembles() {
        let graph = graph(&["e: a b", "f: b c", "g: d", "h:"]);
        for (name, expected) in
            [("a", "a b c e f"), ("f", "a b c e f"), ("d", "d g"), ("h", "h"), ("new", "new")]
        {
            let found = graph.related(&[Arc::from(name)].into());
            let found: Vec<&str> = found.iter().map(|it| &**it).collect();
            assert_eq!(found.join(" "), expected);
        }
    }
}
