//! Lookup of models for models (business logic calls). Its references are weak: a model must not
//! keep the repository alive that holds it.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use actix::WeakAddr;
use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use super::{
    Catalog, Control, Overrides,
    actor::RepositoryActor,
    control::{ClientControl, RepositoryClient},
};
use troupe_base::{
    error::{Error, Result},
    model::{LoadTarget, Lookup, Model},
};

/// Finds models in the catalog; loads and unloads them as a client of the repository does.
pub(super) struct ModelLookup {
    pub(super) actor: WeakAddr<RepositoryActor>,
    pub(super) catalog: Weak<ArcSwap<Catalog>>,
    pub(super) control: ClientControl,
    /// One per version that loads at the same time.
    pub(super) permits: Arc<Semaphore>,
}

impl fmt::Debug for ModelLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the repository")
    }
}

fn stopping() -> Error {
    Error::unavailable("Server is stopping, models are not loaded any more")
}

impl ModelLookup {
    fn client(&self, within: Option<Arc<str>>) -> Option<RepositoryClient> {
        let (actor, catalog) = (self.actor.upgrade()?, self.catalog.upgrade()?);
        Some(RepositoryClient { actor, control: self.control, catalog, within })
    }

    /// A model that asks while it is loaded holds a permit: as long as it waits, one more is given.
    fn request<F>(
        &self,
        target: LoadTarget,
        request: impl FnOnce(RepositoryClient, String) -> F,
    ) -> BoxFuture<'static, Result<()>>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let permits = target.within.is_some().then(|| self.permits.clone());
        let Some(client) = self.client(target.within) else {
            return Box::pin(async { Err(stopping()) });
        };
        let answer = request(client, target.name);
        Box::pin(async move {
            let Some(permits) = permits else { return answer.await };
            permits.add_permits(1);
            let result = answer.await;
            tokio::spawn(async move {
                if let Ok(permit) = permits.acquire_owned().await {
                    permit.forget();
                }
            });
            result
        })
    }
}

impl Lookup for ModelLookup {
    fn find(&self, name: &str, version: Option<i64>) -> Result<Arc<Model>> {
        self.catalog.upgrade().ok_or_else(stopping)?.load().get(name, version)
    }

    fn load(&self, target: LoadTarget, overrides: Overrides) -> BoxFuture<'static, Result<()>> {
        self.request(target, |client, name| client.load(name, overrides))
    }

    fn unload(&self, target: LoadTarget, dependents: bool) -> BoxFuture<'static, Result<()>> {
        self.request(target, move |client, name| client.unload(name, dependents))
    }
}
