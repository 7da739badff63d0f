//! Lets readers see what became of models: each change is a new snapshot of the catalog.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;

use super::{
    catalog::{Catalog, ModelEntry, VersionEntry, VersionState},
    node::{Node, UNLOADED},
    scan::Folders,
};
use troupe_base::model::Model;

/// How often to look whether the last request of an unloaded model is through.
const LOOK: Duration = Duration::from_millis(20);

/// The only writer of the catalog.
#[derive(Clone, Default)]
pub(super) struct Publisher {
    /// What gateways read.
    pub(super) catalog: Arc<ArcSwap<Catalog>>,
}

impl Publisher {
    /// Shows a model as it is now.
    pub(super) fn show(&self, name: &Arc<str>, node: &Node) {
        let entry = node.entry();
        self.change(|catalog| match &entry {
            Some(entry) => {
                catalog.entries.insert(name.clone(), entry.clone());
            }
            None => {
                catalog.entries.remove(name);
            }
        });
    }

    /// Shows versions as loading, unless an older load of them serves.
    pub(super) fn loading(&self, name: &Arc<str>, versions: &[i64]) {
        let loading =
            VersionEntry { model: None, state: VersionState::Loading, reason: String::new() };
        self.change(|catalog| {
            let entry = catalog.entries.entry(name.clone()).or_default();
            for number in versions {
                let version = entry.versions.entry(*number).or_insert_with(|| loading.clone());
                if version.model.is_none() {
                    *version = loading.clone();
                }
            }
        });
    }

    /// Shows unloaded versions as unloading until their last request is answered.
    pub(super) fn unloading(&self, name: &Arc<str>, number: i64, rest: Weak<Model>) {
        if rest.strong_count() == 0 {
            return;
        }
        self.set(name, number, (VersionState::Unavailable, VersionState::Unloading));
        let (publisher, name) = (self.clone(), name.clone());
        tokio::spawn(async move {
            gone(rest).await;
            publisher.set(&name, number, (VersionState::Unloading, VersionState::Unavailable));
        });
    }

    /// Every folder has an entry, and entries without a folder or a history go.
    pub(super) fn folders(&self, folders: &Folders) {
        let is_known = |name: &Arc<str>, entry: &ModelEntry| {
            folders.contains_key(name) || !entry.versions.is_empty()
        };
        self.change(|catalog| {
            catalog.entries.retain(|name, entry| is_known(name, entry));
            for name in folders.keys() {
                catalog.entries.entry(name.clone()).or_default();
            }
        });
    }

    fn set(&self, name: &str, number: i64, (from, to): (VersionState, VersionState)) {
        self.change(|catalog| {
            let entry = catalog.entries.get_mut(name);
            let Some(version) = entry.and_then(|it| it.versions.get_mut(&number)) else { return };
            if version.state == from && version.reason == UNLOADED {
                version.state = to;
            }
        });
    }

    fn change(&self, change: impl Fn(&mut Catalog)) {
        self.catalog.rcu(|old| {
            let mut catalog = Catalog::clone(old);
            change(&mut catalog);
            catalog
        });
    }
}

async fn gone(model: Weak<Model>) {
    while model.strong_count() != 0 {
        tokio::time::sleep(LOOK).await;
    }
}
