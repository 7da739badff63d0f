//! Reads everything an operation is about: its models, and those their ensembles run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Overrides, Settings,
    definition::{self, Definition},
    graph::Graph,
    node::{Failure, Node},
    scan::{self, Folders},
};

/// What somebody asks of the repository.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Loads every model there is.
    LoadAll,
    /// Loads or reloads models, and what they run.
    Load(Vec<(Arc<str>, Overrides)>),
    /// Takes a model out.
    Unload {
        /// Which.
        name: Arc<str>,
        /// Also the steps that only it had loaded.
        dependents: bool,
    },
}

/// What was found; nothing was changed yet.
#[derive(Default)]
pub(super) struct Polled {
    /// All model folders.
    pub(super) folders: Folders,
    /// Repositories that cannot be read.
    pub(super) problems: Vec<String>,
    /// What was asked for.
    pub(super) targets: BTreeSet<Arc<str>>,
    /// The targets of a load, and the models they run.
    pub(super) read: BTreeMap<Arc<str>, Result<Arc<Definition>, Failure>>,
    /// Steps that are left as they are: their files came with a load request.
    pub(super) kept: BTreeSet<Arc<str>>,
}

/// Definitions that came with load requests; they stay until a load says otherwise.
pub(super) type Kept = BTreeMap<Arc<str>, Arc<Definition>>;

/// Reads the disk. Blocks.
pub(super) fn poll(settings: &Settings, action: &Action, kept: &Kept) -> Polled {
    let (folders, problems) = scan::folders(&settings.repositories);
    let mut polled = Polled { folders, problems, ..Polled::default() };
    let mut next: Vec<(Arc<str>, Overrides)> = match action {
        Action::LoadAll => {
            polled.folders.keys().map(|it| (it.clone(), Overrides::default())).collect()
        }
        Action::Load(models) => models.clone(),
        Action::Unload { name, .. } => {
            polled.targets.insert(name.clone());
            return polled;
        }
    };
    polled.targets = next.iter().map(|(name, _)| name.clone()).collect();
    while let Some((name, overrides)) = next.pop() {
        if polled.read.contains_key(&name) || polled.kept.contains(&name) {
            continue;
        }
        let is_kept = !polled.targets.contains(&name);
        let definition = match kept.get(&name).filter(|_| is_kept) {
            Some(definition) => {
                polled.kept.insert(name);
                Ok(definition.clone())
            }
            None => {
                let read = definition::read(settings, &polled.folders, &name, &overrides);
                let read = read.map(Arc::new);
                polled.read.insert(name, read.clone());
                read
            }
        };
        let steps = definition.iter().flat_map(|it| it.needed());
        next.extend(steps.map(|it| (it.model.clone(), Overrides::default())));
    }
    polled
}

impl Polled {
    /// Steps that a load request brought since we looked stay as they are, too.
    pub(super) fn keep_overrides(&mut self, nodes: &BTreeMap<Arc<str>, Node>) {
        let is_override = |name: &Arc<str>| {
            let definition = nodes.get(name).and_then(|it| it.definition.as_ref());
            definition.is_some_and(|it| it.is_override)
        };
        let targets = &self.targets;
        self.read.retain(|name, _| targets.contains(name) || !is_override(name));
    }

    /// Every model the operation may touch, given those nobody else is working on.
    pub(super) fn scope(&self, nodes: &BTreeMap<Arc<str>, Node>) -> BTreeSet<Arc<str>> {
        let mut touched = self.targets.clone();
        touched.extend(self.read.keys().cloned());
        touched.extend(self.kept.iter().cloned());
        let edges = |name: &Arc<str>, node: Option<&Node>| {
            let found = self.read.get(name).and_then(|it| it.as_ref().ok());
            let found = found.into_iter().flat_map(|it| it.needed());
            let known = node.into_iter().flat_map(Node::needed);
            let mut models: Vec<_> = found.chain(known).map(|it| it.model.clone()).collect();
            models.extend(node.into_iter().flat_map(Node::running));
            models
        };
        let names: BTreeSet<_> = nodes.keys().chain(self.read.keys()).collect();
        let names: Vec<_> = names.into_iter().map(|it| (it, edges(it, nodes.get(it)))).collect();
        Graph::new(names.iter().map(|(name, steps)| (*name, steps.as_slice()))).related(&touched)
    }
}
