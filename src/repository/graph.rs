//! Which model needs which: the graph of ensembles and their steps, its order and its problems.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use petgraph::{
    Direction::{Incoming, Outgoing},
    algo::tarjan_scc,
    graph::{DiGraph, NodeIndex},
    visit::{Dfs, UndirectedAdaptor},
};

use troupe_base::config::{ModelConfig, Problem};

/// A step as the graph sees it: a model, and the version it must have (-1: any).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Needed {
    /// The step's model.
    pub(super) model: Arc<str>,
    /// -1: the latest.
    pub(super) version: i64,
}

/// Models and what they need; an edge leads from a step's model to the ensemble that runs it.
pub(super) struct Graph {
    graph: DiGraph<Arc<str>, ()>,
    nodes: BTreeMap<Arc<str>, NodeIndex>,
}

impl Graph {
    /// Names that are only needed become nodes too.
    pub(super) fn new<'a>(
        models: impl IntoIterator<Item = (&'a Arc<str>, &'a [Arc<str>])>,
    ) -> Graph {
        let mut graph = Graph { graph: DiGraph::new(), nodes: BTreeMap::new() };
        for (name, steps) in models {
            let ensemble = graph.node(name);
            for step in steps {
                let step = graph.node(step);
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
        for start in names.iter().filter_map(|it| self.nodes.get(it)) {
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

    fn neighbours(&self, name: &str, direction: petgraph::Direction) -> Vec<Arc<str>> {
        let node = self.nodes.get(name).copied();
        let around = node.into_iter().flat_map(|it| self.graph.neighbors_directed(it, direction));
        let names: BTreeSet<_> = around.map(|it| self.graph[it].clone()).collect();
        names.into_iter().collect()
    }

    /// All names, steps before the ensembles that run them; those of a ring in any order.
    pub(super) fn order(&self) -> Vec<Arc<str>> {
        // Tarjan's algorithm hands out successors first.
        tarjan_scc(&self.graph)
            .into_iter()
            .rev()
            .flatten()
            .map(|it| self.graph[it].clone())
            .collect()
    }

    /// Models that need themselves, each with Triton's text for its ring.
    pub(super) fn rings(&self) -> BTreeMap<Arc<str>, String> {
        let mut rings = BTreeMap::new();
        for ring in tarjan_scc(&self.graph) {
            let names: BTreeSet<_> = ring.iter().map(|it| self.graph[*it].clone()).collect();
            let Some(first) = names.first() else { continue };
            let Some(last) = self.steps(first).into_iter().find(|it| names.contains(it)) else {
                continue;
            };
            let text = format!(
                "circular dependency between ensembles: {first} -> ... -> {last} -> {first}"
            );
            rings.extend(names.iter().map(|it| (it.clone(), text.clone())));
        }
        rings
    }
}

/// What became of a model some ensemble needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Upstream {
    /// Its loaded versions; never empty.
    Loaded(BTreeSet<i64>),
    /// Not in any repository, or in several.
    Missing,
    /// Its config cannot be used.
    Invalid(String),
    /// Loading failed, or nobody asked for it, or it was unloaded.
    NotLoaded(Option<String>),
}

/// One reason why an ensemble cannot be made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unmet {
    /// Position of the step it is about.
    step: usize,
    /// In Triton's words.
    text: String,
}

impl Unmet {
    /// With the place where the step was written.
    pub(super) fn problem(&self, config: &ModelConfig) -> Problem {
        let path = format!("ensemble_scheduling.step[{}].model_name", self.step);
        config.source_map.problem(&path, self.text.as_str())
    }
}

/// Why the ensemble `name` cannot be made of what its steps became; every reason.
pub(super) fn unmet(
    name: &str,
    needed: &[Needed],
    upstream: &dyn Fn(&str) -> Upstream,
) -> Vec<Unmet> {
    let mut problems = Vec::new();
    let mut missing = Vec::new();
    for (model, versions) in by_model(needed) {
        let step = needed.iter().position(|it| it.model == *model).unwrap_or_default();
        let depends = format!("ensemble '{name}' depends on '{model}'");
        let text = match upstream(model) {
            Upstream::Loaded(loaded) => {
                let lacking = versions.iter().filter(|it| **it != -1 && !loaded.contains(it));
                problems.extend(lacking.map(|version| {
                    let is_it = |it: &Needed| it.model == *model && it.version == *version;
                    let step = needed.iter().position(is_it).unwrap_or(step);
                    let text = format!("{depends} whose required version {version} is not loaded.");
                    Unmet { step, text }
                }));
                continue;
            }
            Upstream::Missing => {
                missing.push((step, &**model));
                continue;
            }
            Upstream::Invalid(error) => {
                format!("{depends} which is not valid. Model '{model}' failed with error: {error}")
            }
            Upstream::NotLoaded(error) => {
                let error =
                    error.map(|it| format!(" Model '{model}' loading failed with error: {it}"));
                format!("{depends} which has no loaded version.{}", error.unwrap_or_default())
            }
        };
        problems.push(Unmet { step, text });
    }
    if let Some((step, _)) = missing.first() {
        let models: Vec<_> = missing.iter().map(|it| it.1).collect();
        let text = format!(
            "ensemble {name} contains models that are not available or ambiguous: {}",
            models.join(", ")
        );
        problems.insert(0, Unmet { step: *step, text });
    }
    problems
}

fn by_model(needed: &[Needed]) -> BTreeMap<&Arc<str>, BTreeSet<i64>> {
    let mut versions: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for step in needed {
        versions.entry(&step.model).or_default().insert(step.version);
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a: b c/2` is an ensemble `a` of `b` and version 2 of `c`.
    fn models(text: &[&str]) -> BTreeMap<Arc<str>, Vec<Needed>> {
        let parse = |step: &str| {
            let (model, version) = step.split_once('/').unwrap_or((step, "-1"));
            Needed { model: model.into(), version: version.parse().unwrap() }
        };
        let line = |line: &&str| {
            let (name, steps) = line.split_once(':').unwrap();
            (name.into(), steps.split_whitespace().map(parse).collect())
        };
        text.iter().map(line).collect()
    }

    fn graph(text: &[&str]) -> Graph {
        let names = |needed: &[Needed]| needed.iter().map(|it| it.model.clone()).collect();
        let models = models(text);
        let edges: Vec<(_, Vec<_>)> = models.iter().map(|(name, it)| (name, names(it))).collect();
        Graph::new(edges.iter().map(|(name, steps)| (*name, steps.as_slice())))
    }

    #[test]
    fn a_ring_is_told_to_each_of_its_models() {
        let rings = |text: &[&str]| -> Vec<String> {
            graph(text).rings().iter().map(|(name, ring)| format!("{name}: {ring}")).collect()
        };
        let text = "circular dependency between ensembles: ";
        assert_eq!(rings(&["a: b", "b: c", "c:"]), [""; 0]);
        assert_eq!(rings(&["m: m n"]), [format!("m: {text}m -> ... -> m -> m")]);
        assert_eq!(
            rings(&["a: b", "b: c", "c: a", "d: a"]),
            ["a", "b", "c"].map(|it| format!("{it}: {text}a -> ... -> b -> a"))
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

    #[test]
    fn every_unmet_need_is_told_in_tritons_words() {
        let upstream = |name: &str| match name {
            "ok" => Upstream::Loaded([1, 3].into()),
            "bad" => Upstream::Invalid("no input".into()),
            "broken" => Upstream::NotLoaded(Some("it raised".into())),
            "idle" => Upstream::NotLoaded(None),
            _ => Upstream::Missing,
        };
        let check = |line: &str, expected: &[&str]| {
            let models = models(&[line]);
            let (name, needed) = models.first_key_value().unwrap();
            let found = unmet(name, needed, &upstream);
            let found: Vec<_> = found.into_iter().map(|it| it.text).collect();
            assert_eq!(found, expected, "{line}");
        };
        check("e: ok ok/1 ok/3", &[]);
        check("e: ok/2", &["ensemble 'e' depends on 'ok' whose required version 2 is not loaded."]);
        check(
            "e: y idle x y broken bad",
            &[
                "ensemble e contains models that are not available or ambiguous: x, y",
                "ensemble 'e' depends on 'bad' which is not valid. Model 'bad' failed with error: no input",
                "ensemble 'e' depends on 'broken' which has no loaded version. Model 'broken' loading \
             failed with error: it raised",
                "ensemble 'e' depends on 'idle' which has no loaded version.",
            ],
        );
    }
}
