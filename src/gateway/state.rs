//! The server's state as its gateways see it: models, settings, where it is in its life, tracing.

use std::sync::Arc;

use crate::{
    access::Access,
    lifecycle::{Lifecycle, Stage},
    settings::Settings,
};
use troupe_base::{
    config::suggesting,
    error::Result,
    model::{Model, all_ready},
};
use troupe_observability::telemetry::Tracer;
use troupe_options::Api;
use troupe_repository::{Catalog, Repository};

/// What every gateway holds of the server.
#[derive(Clone)]
pub struct ServerState {
    /// Models, and how to change them.
    pub repository: Repository,
    /// The command line's part.
    pub settings: Settings,
    /// Starting, serving or exiting; and what is in flight.
    pub lifecycle: Arc<Lifecycle>,
    /// Which requests are traced.
    pub tracer: Arc<Tracer>,
}

impl ServerState {
    /// A ready model; `None` is its highest ready version.
    pub fn model(&self, name: &str, version: Option<i64>) -> Result<Arc<Model>> {
        self.model_of(&self.repository.catalog.load(), name, version)
    }

    /// The same of a catalog that is read for more than this.
    pub(crate) fn model_of(
        &self,
        catalog: &Catalog,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<Model>> {
        catalog.get(name, version).map_err(|error| match catalog.entries.contains_key(name) {
            true => error,
            false => error.with_hint(&self.guess(catalog, name)),
        })
    }

    /// What a name that no model has was probably meant to be, behind a separator; nothing where
    /// somebody may not list the models.
    pub(crate) fn guess(&self, catalog: &Catalog, name: &str) -> String {
        let Settings { http_access, grpc_access, .. } = &self.settings;
        let is_closed = |it: &Access| it.restrictions.header(Api::ModelRepository).is_some();
        if is_closed(http_access) || is_closed(grpc_access) {
            return String::new();
        }
        let names = catalog.entries.keys().map(|it| &**it);
        suggesting(String::new(), name, names)
    }

    /// What `health/ready` and `ServerReady` say while the server is not exiting.
    pub async fn is_ready(&self) -> bool {
        if self.lifecycle.check_serving().is_err() {
            return false;
        }
        if !self.settings.strict_readiness {
            return true;
        }
        let checks = {
            let catalog = self.repository.catalog.load();
            if !catalog.is_ready() {
                return false;
            }
            catalog.ready_models().flat_map(|it| it.readiness()).collect()
        };
        all_ready(checks).await
    }

    /// What `health/live` and `ServerLive` say while the server is not exiting.
    pub fn is_live(&self) -> bool {
        self.lifecycle.stage() != Stage::Failed
    }
}
