//! Publishes what became of models: each change is a new snapshot of the catalog, for readers
//! without a lock.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;

use crate::{
    catalog::{Catalog, ModelEntry, VersionEntry, VersionState},
    disk::scan::Folders,
    failure::UNLOADED,
};
use troupe_base::model::Model;

/// How often an unloaded model is checked for requests in flight.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The only writer of the catalog.
#[derive(Clone, Default)]
pub(crate) struct Publisher {
    /// What gateways read.
    pub(crate) catalog: Arc<ArcSwap<Catalog>>,
}

impl Publisher {
    /// Shows a model as it is now; `None` if there is no such model. An operation goes through all
    /// models that are related to its own, and few of them change: nothing is copied for the others.
    pub(crate) fn show(&self, name: &Arc<str>, entry: Option<ModelEntry>) {
        let is_shown = match (self.catalog.load().entries.get(name), &entry) {
            (Some(shown), Some(entry)) => shown.is_same(entry),
            (None, None) => true,
            _ => false,
        };
        if is_shown {
            return;
        }
        self.update(|catalog| match &entry {
            Some(entry) => {
                catalog.entries.insert(name.clone(), entry.clone());
            }
            None => {
                catalog.entries.remove(name);
            }
        });
    }

    /// Shows versions as loading, unless an older load of them serves.
    pub(crate) fn show_loading(&self, versions: &[(&str, i64)]) {
        let shown = self.catalog.load();
        let serves = |(name, number): &(&str, i64)| {
            let version = shown.entries.get(*name).and_then(|it| it.versions.get(number));
            version.is_some_and(|it| it.model.is_some())
        };
        if versions.iter().all(serves) {
            return;
        }
        let loading =
            VersionEntry { model: None, state: VersionState::Loading, reason: String::new() };
        self.update(|catalog| {
            for (name, number) in versions {
                let entry = catalog.entries.entry((*name).into()).or_default();
                let version = entry.versions.entry(*number).or_insert_with(|| loading.clone());
                if version.model.is_none() {
                    *version = loading.clone();
                }
            }
        });
    }

    /// Shows unloaded versions as unloading until their last request is answered.
    pub(crate) fn show_unloading(&self, name: &Arc<str>, number: i64, model: Weak<Model>) {
        if model.strong_count() == 0 {
            return;
        }
        self.replace_state(name, number, VersionState::Unavailable, VersionState::Unloading);
        let (publisher, name) = (self.clone(), name.clone());
        tokio::spawn(async move {
            drained(model).await;
            let (unloading, unavailable) = (VersionState::Unloading, VersionState::Unavailable);
            publisher.replace_state(&name, number, unloading, unavailable);
            publisher.update(|catalog| catalog.entries.retain(|_, entry| entry.is_there()));
        });
    }

    /// Every folder has an entry, and entries without one go once nothing of them serves.
    pub(crate) fn show_folders(&self, folders: &Folders) {
        let shown = self.catalog.load();
        let is_shown = |(name, entry): (_, &ModelEntry)| {
            entry.is_gone != folders.contains_key(name) && entry.is_there()
        };
        let is_known = |name: &Arc<str>| shown.entries.contains_key(name);
        if shown.entries.iter().all(is_shown) && folders.keys().all(is_known) {
            return;
        }
        self.update(|catalog| {
            for (name, entry) in &mut catalog.entries {
                entry.is_gone = !folders.contains_key(name);
            }
            catalog.entries.retain(|_, entry| entry.is_there());
            for name in folders.keys() {
                catalog.entries.entry(name.clone()).or_default();
            }
        });
    }

    /// Moves an unloaded version from one state to another.
    fn replace_state(&self, name: &str, number: i64, from: VersionState, to: VersionState) {
        self.update(|catalog| {
            let entry = catalog.entries.get_mut(name);
            let Some(version) = entry.and_then(|entry| entry.versions.get_mut(&number)) else {
                return;
            };
            if version.state == from && version.reason == UNLOADED {
                version.state = to;
            }
        });
    }

    fn update(&self, change: impl Fn(&mut Catalog)) {
        self.catalog.rcu(|old| {
            let mut catalog = Catalog::clone(old);
            change(&mut catalog);
            catalog
        });
    }
}

/// Ends when nobody holds the model any more: its last request is answered.
async fn drained(model: Weak<Model>) {
    while model.strong_count() != 0 {
        tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
    }
}
