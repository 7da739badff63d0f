//! The door of the repository: starts it, loads what the command line asks for, answers the load API.

use std::{collections::BTreeSet, sync::Arc};

use actix::{Actor, Addr, AsyncContext};
use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::{
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
};

use super::{
    Catalog, Control, ControlMode, Overrides, Repository, Settings, Summary,
    actor::{Do, Done, End, Keeper},
    inside::Inside,
    load::{Open, Opener},
    node::Failure,
    overlay,
    poll::Action,
    publish::Publisher,
    scan, summary,
    world::World,
};
use troupe_base::{
    error::{Error, Result},
    metrics::Metrics,
};
use troupe_engine::engines::Engines;

/// A repository that has begun to load.
pub struct StartedRepository {
    /// Answers at once, with what is loaded so far.
    pub repository: Repository,
    /// Ends when everything asked for at the start is loaded or has failed.
    pub initial: BoxFuture<'static, Summary>,
}

/// Starts the repository on the arbiter of the calling thread.
///
/// It ends when the last clone of what it returned is dropped, and its models when their last
/// request is answered.
pub fn start(settings: Settings, engines: Engines, metrics: Metrics) -> StartedRepository {
    let settings = Settings { repositories: distinct(&settings), ..settings };
    start_with(settings, |settings| Box::new(Opener { settings, engines, metrics }))
}

pub(super) fn start_with(
    mut settings: Settings,
    opener: impl FnOnce(Arc<Settings>) -> Box<dyn Open>,
) -> StartedRepository {
    let publisher = Publisher::default();
    let (catalog, mode) = (publisher.catalog.clone(), settings.mode);
    let most = Semaphore::MAX_PERMITS / 2;
    let permits = Arc::new(Semaphore::new(settings.threads.clamp(1, most)));
    let mut shared = None;
    let keeper = Keeper::create(|ctx| {
        settings.backend.lookup = Some(Arc::new(Inside {
            keeper: ctx.address().downgrade(),
            catalog: Arc::downgrade(&catalog),
            mode,
            permits: permits.clone(),
        }));
        let settings = shared.insert(Arc::new(settings)).clone();
        Keeper::new(World {
            settings: settings.clone(),
            open: opener(settings),
            publisher,
            permits,
        })
    });
    let settings = shared.expect("the keeper was made with them");
    let door = Door { keeper, mode, catalog: catalog.clone(), within: None };
    let initial = door.clone();
    let initial = Box::pin(async move {
        let scratch = settings.scratch.clone();
        let swept = spawn_blocking(move || overlay::sweep(&scratch)).await;
        swept.unwrap_or_else(|error| tracing::warn!("old files of load requests stay: {error}"));
        match initial.ask(at_start(&settings)).await {
            Ok(done) => summary::summary(&initial.catalog.load(), &done),
            Err(error) => {
                tracing::error!("{error}");
                Summary::default()
            }
        }
    });
    StartedRepository { repository: Repository { catalog, control: Arc::new(door) }, initial }
}

/// A repository given twice is meant once; otherwise none of its models would be unique.
fn distinct(settings: &Settings) -> Vec<std::path::PathBuf> {
    let mut seen = BTreeSet::new();
    let mut repositories = settings.repositories.clone();
    repositories.retain(|it| seen.insert(it.canonicalize().unwrap_or_else(|_| it.clone())));
    repositories
}

fn at_start(settings: &Settings) -> Action {
    let is_all = settings.load_models.iter().any(|it| it == "*");
    if settings.mode == ControlMode::None || is_all {
        return Action::LoadAll;
    }
    let models = settings.load_models.iter();
    Action::Load(models.map(|it| (it.as_str().into(), Overrides::default())).collect())
}

/// Where loads and unloads are asked for.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) keeper: Addr<Keeper>,
    pub(super) mode: ControlMode,
    pub(super) catalog: Arc<ArcSwap<Catalog>>,
    /// The model that is being loaded and asks.
    pub(super) within: Option<Arc<str>>,
}

impl Door {
    async fn ask(&self, action: Action) -> Result<Done> {
        let (reply, answer) = oneshot::channel();
        self.keeper.do_send(Do { action, reply, within: self.within.clone() });
        let stopping = |_| Error::unavailable("Server is stopping, models are not loaded any more");
        answer.await.map_err(stopping)?
    }

    fn check(&self, name: &str) -> Result<()> {
        if self.mode == ControlMode::None {
            let text = "explicit model load / unload is not allowed if polling is enabled";
            return Err(Error::unavailable(text));
        }
        scan::check_name(name)
    }
}

impl Control for Door {
    fn load(&self, name: String, overrides: Overrides) -> BoxFuture<'static, Result<()>> {
        let door = self.clone();
        Box::pin(async move {
            door.check(&name)?;
            let name: Arc<str> = name.into();
            let done = door.ask(Action::Load(vec![(name.clone(), overrides)])).await?;
            match done.results.get(&name) {
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
        let door = self.clone();
        Box::pin(async move {
            door.check(&name)?;
            door.ask(Action::Unload { name: name.into(), dependents }).await?;
            Ok(())
        })
    }

    fn end(&self) {
        self.keeper.do_send(End);
        self.catalog.store(Arc::default());
    }
}

/// Triton's text for a load that failed, then ours.
fn load_error(name: &str, failure: &Failure) -> Error {
    let poll = format!("failed to load '{name}', failed to poll from model repository");
    match failure {
        Failure::Missing => Error::internal(poll),
        Failure::Duplicate | Failure::Unreadable(_) => {
            Error::internal(format!("{poll}: {}", failure.reason()))
        }
        Failure::Refused(text) => Error::invalid(text.as_str()),
        Failure::Invalid(text) | Failure::NotLoaded(text) => {
            Error::invalid(format!("load failed for model '{name}': {text}\n"))
        }
    }
}
