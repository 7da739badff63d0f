//! The repository as its own models see it: what it holds must not hold it.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use actix::WeakAddr;
use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use super::{Catalog, Control, ControlMode, actor::Keeper, control::Door};
use troupe_base::{
    error::{Error, Result},
    model::{LoadTarget, Lookup, Model, Overrides},
};

/// Looks into the catalog, and knocks at the same door as clients.
pub(super) struct Inside {
    pub(super) keeper: WeakAddr<Keeper>,
    pub(super) catalog: Weak<ArcSwap<Catalog>>,
    pub(super) mode: ControlMode,
    /// One per version that loads at the same time.
    pub(super) permits: Arc<Semaphore>,
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the repository")
    }
}

fn stopping() -> Error {
    Error::unavailable("Server is stopping, models are not loaded any more")
}

impl Inside {
    fn door(&self, within: Option<Arc<str>>) -> Option<Door> {
        let (keeper, catalog) = (self.keeper.upgrade()?, self.catalog.upgrade()?);
        Some(Door { keeper, mode: self.mode, catalog, within })
    }

    /// A model that waits while it is loaded holds a permit: as long as it does, there is another.
    fn change<F>(&self, target: LoadTarget, change: impl FnOnce(Door, String) -> F) -> Change
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let permits = target.within.is_some().then(|| self.permits.clone());
        let Some(door) = self.door(target.within) else {
            return Box::pin(async { Err(stopping()) });
        };
        let change = change(door, target.name);
        Box::pin(async move {
            let Some(permits) = permits else { return change.await };
            permits.add_permits(1);
            let result = change.await;
            tokio::spawn(async move {
                if let Ok(permit) = permits.acquire_owned().await {
                    permit.forget();
                }
            });
            result
        })
    }
}

type Change = BoxFuture<'static, Result<()>>;

impl Lookup for Inside {
    fn find(&self, name: &str, version: Option<i64>) -> Result<Arc<Model>> {
        self.catalog.upgrade().ok_or_else(stopping)?.load().get(name, version)
    }

    fn load(&self, target: LoadTarget, overrides: Overrides) -> Change {
        self.change(target, |door, name| door.load(name, overrides))
    }

    fn unload(&self, target: LoadTarget, dependents: bool) -> Change {
        self.change(target, move |door, name| door.unload(name, dependents))
    }
}
