//! Demand: which models should serve after a load or an unload, and for whom.

use std::{collections::BTreeSet, sync::Arc};

use super::record::{Demand, ModelRecord, Records};
use crate::{
    action::Action, disk::snapshot::DiskSnapshot, failure::LoadFailure, graph::DependencyGraph,
};

/// Notes in the records who asked for whom.
pub(super) fn update(
    records: &mut Records,
    graph: &DependencyGraph,
    snapshot: &DiskSnapshot,
    action: &Action,
) {
    match action {
        Action::LoadAll | Action::Load(_) => load(records, graph, snapshot),
        Action::Refresh(names) => want_steps(records, graph, names),
        Action::Unload { name, dependents } => unload(records, graph, name, *dependents),
    }
}

/// The targets are wanted explicitly, and everything they run implicitly.
fn load(records: &mut Records, graph: &DependencyGraph, snapshot: &DiskSnapshot) {
    let targets = &snapshot.targets;
    for name in targets {
        let definition = snapshot.definitions.get(name);
        let is_refused =
            matches!(definition, Some(Err(LoadFailure::Missing | LoadFailure::Refused(_))));
        if !is_refused {
            records.entry(name.clone()).or_default().demand = Demand::Explicit;
        }
    }
    let targets: Vec<_> = targets.iter().cloned().collect();
    want_steps(records, graph, &targets);
}

/// Everything that these models run is wanted implicitly, if they are wanted.
fn want_steps(records: &mut Records, graph: &DependencyGraph, models: &[Arc<str>]) {
    let is_wanted = |name: &&Arc<str>| records.get(*name).is_some_and(ModelRecord::is_wanted);
    let mut next: Vec<_> = models.iter().filter(is_wanted).cloned().collect();
    let mut seen = BTreeSet::new();
    while let Some(name) = next.pop() {
        let Some(record) = records.get_mut(&name).filter(|_| seen.insert(name.clone())) else {
            continue;
        };
        if record.demand == Demand::None {
            record.demand = Demand::Implicit;
        }
        next.extend(graph.steps(&name));
    }
}

/// Nobody wants the model any more; with `dependents` its steps go too, if they can.
fn unload(records: &mut Records, graph: &DependencyGraph, name: &Arc<str>, dependents: bool) {
    let Some(record) = records.get_mut(name) else { return };
    record.demand = Demand::None;
    let mut next = if dependents { vec![name.clone()] } else { Vec::new() };
    while let Some(name) = next.pop() {
        for step in graph.steps(&name) {
            if release(records, graph, &step) {
                next.push(step);
            }
        }
    }
}

/// Gives up a step that was only loaded for ensembles, once none of them is wanted.
fn release(records: &mut Records, graph: &DependencyGraph, step: &Arc<str>) -> bool {
    let is_wanted = |name: &Arc<str>| records.get(name).is_some_and(ModelRecord::is_wanted);
    let is_required = graph.ensembles(step).iter().any(is_wanted);
    match records.get_mut(step) {
        Some(record) if record.demand == Demand::Implicit && !is_required => {
            record.demand = Demand::None;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `e: a b` wants `e` of `a` and `b`; after `load e`, `unload e`, `unload all e`.
    #[test]
    fn steps_are_wanted_for_their_ensembles() {
        let models = [("a", ""), ("b", ""), ("c", ""), ("e", "a b"), ("f", "b c"), ("o", "e")];
        for (actions, expected) in [
            (&["load a"][..], "A"),
            (&["load e"], "a b E"),
            (&["load a", "load e"], "A b E"),
            (&["load o"], "a b e O"),
            (&["load o", "unload o"], "a b e"),
            (&["load o", "unload all o"], ""),
            (&["load a", "load o", "unload all o"], "A"),
            (&["load e", "load f", "unload all f"], "a b E"),
            (&["load e", "unload a"], "b E"),
            (&["load e", "refresh a"], "a b E"),
            (&["load a", "refresh e"], "A"),
            (&["load e", "unload a", "refresh e"], "a b E"),
            (&["load e", "load b", "unload all e"], "B"),
        ] {
            let steps = |(name, steps): (&str, &str)| -> (Arc<str>, Vec<Arc<str>>) {
                (name.into(), steps.split_whitespace().map(Arc::from).collect())
            };
            let graph = DependencyGraph::new(models.map(steps));
            let mut records: Records =
                models.iter().map(|(name, _)| ((*name).into(), ModelRecord::default())).collect();
            for action in actions {
                let (verb, name) = action.rsplit_once(' ').unwrap();
                let name: Arc<str> = name.into();
                let snapshot =
                    DiskSnapshot { targets: [name.clone()].into(), ..DiskSnapshot::default() };
                let action = match verb {
                    "load" => Action::Load(Vec::new()),
                    "refresh" => Action::Refresh(vec![name]),
                    verb => Action::Unload { name, dependents: verb == "unload all" },
                };
                update(&mut records, &graph, &snapshot, &action);
            }
            let word = |(name, record): (&Arc<str>, &ModelRecord)| match record.demand {
                Demand::None => None,
                Demand::Implicit => Some(name.to_string()),
                Demand::Explicit => Some(name.to_uppercase()),
            };
            let found: Vec<String> = records.iter().filter_map(word).collect();
            assert_eq!(found.join(" "), expected, "{actions:?}");
        }
    }
}
