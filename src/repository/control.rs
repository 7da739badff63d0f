//! The load API: asks the repository's actor for loads and unloads, and words their failures.

use std::{collections::BTreeSet, sync::Arc};

use actix::Addr;
use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::{
    Catalog, Control, ControlMode, Overrides, Settings,
    action::Action,
    actor::{OperationOutcome, ReleaseAll, RepositoryActor, RunOperation},
    catalog::ModelEntry,
    disk::scan,
    failure::LoadFailure,
    operation::run::Results,
};
use troupe_base::{
    config::suggesting,
    error::{Error, Result},
    model::Model,
};

/// Asks the repository's actor.
#[derive(Clone)]
pub(super) struct RepositoryClient {
    pub(super) actor: Addr<RepositoryActor>,
    /// Clients may load and unload.
    pub(super) control: ClientControl,
    pub(super) catalog: Arc<ArcSwap<Catalog>>,
    /// The model that asks, if it may itself be loading.
    pub(super) within: Option<Arc<str>>,
}

/// Triton's text, which it also says where there is no polling, and what to do about it.
const NOT_EXPLICIT: &str = "explicit model load / unload is not allowed if polling is enabled; start \
                            the server with --model-control-mode=explicit to allow it";
/// The same, where what somebody loads by hand is loaded as it is saved.
const WATCHED: &str = "explicit model load / unload is not allowed if polling is enabled: --watch \
                       loads what is saved (--model-control-mode=explicit beside it allows both)";

/// Whether clients may load and unload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientControl {
    Allowed,
    Refused,
    /// What changes on disk is loaded by itself.
    Watched,
}

impl From<&Settings> for ClientControl {
    fn from(settings: &Settings) -> ClientControl {
        match settings.mode {
            ControlMode::None if settings.watch => ClientControl::Watched,
            ControlMode::None => ClientControl::Refused,
            _ => ClientControl::Allowed,
        }
    }
}

impl RepositoryClient {
    /// Runs one operation to its end.
    pub(super) async fn run(&self, action: Action) -> Result<Arc<OperationOutcome>> {
        let (reply, answer) = oneshot::channel();
        self.actor.do_send(RunOperation { action, reply, within: self.within.clone() });
        let stopping = |_| Error::unavailable("Server is stopping, models are not loaded any more");
        answer.await.map_err(stopping)?
    }

    /// An ensemble may go on with steps as they were before: that is not what was asked for.
    fn steps_loaded(&self, name: &str, results: &Results) -> Result<()> {
        let catalog = self.catalog.load();
        let ready = catalog.entries.get(name).into_iter().flat_map(ModelEntry::ready);
        let mut next: Vec<Arc<Model>> = ready.cloned().collect();
        let mut seen = BTreeSet::new();
        while let Some(model) = next.pop() {
            if !seen.insert((model.name().clone(), model.version)) {
                continue;
            }
            if let Some(Err(failure)) = results.get(model.name()) {
                return Err(Error::invalid(format!(
                    "load failed for model '{name}': '{}', which it runs, was not loaded: {}. What \
                     was loaded before serves on\n",
                    model.name(),
                    failure.reason()
                )));
            }
            next.extend(model.steps.iter().cloned());
        }
        Ok(())
    }

    fn check(&self, name: &str) -> Result<()> {
        match self.control {
            ClientControl::Allowed => (),
            ClientControl::Refused => return Err(Error::unavailable(NOT_EXPLICIT)),
            ClientControl::Watched => return Err(Error::unavailable(WATCHED)),
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
                Some(Ok(())) => client.steps_loaded(&name, &outcome.results),
                Some(Err(LoadFailure::Missing)) => {
                    let catalog = client.catalog.load();
                    let others = catalog.entries.keys().map(|it| &**it).filter(|it| **it != *name);
                    let text = format!("{}: there is no such folder", not_polled(&name));
                    Err(Error::internal(suggesting(text, &name, others)))
                }
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

fn not_polled(name: &str) -> String {
    format!("failed to load '{name}', failed to poll from model repository")
}

/// Triton's text for a load that failed, then ours.
fn load_error(name: &str, failure: &LoadFailure) -> Error {
    match failure {
        LoadFailure::Missing | LoadFailure::Duplicate | LoadFailure::Unreadable(_) => {
            Error::internal(format!("{}: {}", not_polled(name), failure.reason()))
        }
        LoadFailure::Refused(text) => Error::invalid(text.as_str()),
        LoadFailure::Unfit(text) => Error::invalid(format!(
            "load failed for model '{name}': {text}. What was loaded before serves on\n"
        )),
        LoadFailure::Invalid(text) | LoadFailure::NotLoaded(text) => {
            Error::invalid(format!("load failed for model '{name}': {text}\n"))
        }
    }
}
