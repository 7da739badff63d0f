//! The load API: asks the repository's actor for loads and unloads, and words their failures.

use std::sync::Arc;

use actix::Addr;
use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::{
    Catalog, Control, ControlMode, Overrides,
    action::Action,
    actor::{OperationOutcome, ReleaseAll, RepositoryActor, RunOperation},
    disk::scan,
    failure::LoadFailure,
};
use troupe_base::error::{Error, Result};

/// Asks the repository's actor.
#[derive(Clone)]
pub(super) struct RepositoryClient {
    pub(super) actor: Addr<RepositoryActor>,
    pub(super) mode: ControlMode,
    pub(super) catalog: Arc<ArcSwap<Catalog>>,
    /// The model that asks, if it may itself be loading.
    pub(super) within: Option<Arc<str>>,
}

/// Triton's text, which it also says where there is no polling, and what to do about it.
const NOT_EXPLICIT: &str = "explicit model load / unload is not allowed if polling is enabled; start \
                            the server with --model-control-mode=explicit to allow it";

impl RepositoryClient {
    /// Runs one operation to its end.
    pub(super) async fn run(&self, action: Action) -> Result<Arc<OperationOutcome>> {
        let (reply, answer) = oneshot::channel();
        self.actor.do_send(RunOperation { action, reply, within: self.within.clone() });
        let stopping = |_| Error::unavailable("Server is stopping, models are not loaded any more");
        answer.await.map_err(stopping)?
    }

    fn check(&self, name: &str) -> Result<()> {
        if self.mode == ControlMode::None {
            return Err(Error::unavailable(NOT_EXPLICIT));
        }
        scan::check_name(name)
    }
}

impl Control for RepositoryClient {
    fn load(&self, name: String, overrides: Overrides) -> BoxFuture<'static, Result<()>> {
        let client = self.clone();
        Box::pin(async move {
            client.check(&name)?;
            let name: Arc<str> = name.into();
            let outcome = client.run(Action::Load(vec![(name.clone(), overrides)])).await?;
            match outcome.results.get(&name) {
                Some(Ok(())) => Ok(()),
                Some(Err(failure)) => Err(load_error(&name, failure)),
                None => {
                    let text = format!("failed to load '{name}', no version is available");
                    Err(Error::internal(text))
                }
            }
        })
    }

    fn unload(&self, name: String, dependents: bool) -> BoxFuture<'static, Result<()>> {
        let client = self.clone();
        Box::pin(async move {
            client.check(&name)?;
            client.run(Action::Unload { name: name.into(), dependents }).await?;
            Ok(())
        })
    }

    fn end(&self) {
        self.actor.do_send(ReleaseAll);
        self.catalog.store(Arc::default());
    }
}

/// Triton's text for a load that failed, then ours.
fn load_error(name: &str, failure: &LoadFailure) -> Error {
    let poll = format!("failed to load '{name}', failed to poll from model repository");
    match failure {
        LoadFailure::Missing => Error::internal(poll),
        LoadFailure::Duplicate | LoadFailure::Unreadable(_) => {
            Error::internal(format!("{poll}: {}", failure.reason()))
        }
        LoadFailure::Refused(text) => Error::invalid(text.as_str()),
        LoadFailure::Invalid(text) | LoadFailure::NotLoaded(text) => {
            Error::invalid(format!("load failed for model '{name}': {text}\n"))
        }
    }
}
