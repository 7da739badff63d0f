//! Starts the repository: its actor, its client, and the loads the command line asks for.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use actix::{Actor, AsyncContext};
use futures_util::future::BoxFuture;
use tokio::{sync::Semaphore, task::spawn_blocking};

use super::{
    ControlMode, Overrides, Repository, Settings, Summary,
    action::Action,
    actor::RepositoryActor,
    control::{ClientControl, RepositoryClient},
    disk::{overlay, scan},
    lookup::ModelLookup,
    operation::{
        open::{ModelOpener, OpenModel},
        publish::Publisher,
        versions::LoadContext,
    },
    summary,
    watch::{self, Watch},
};
use troupe_base::metrics::Metrics;
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
    start_with(settings, |settings| Box::new(ModelOpener { settings, engines, metrics }))
}

/// The same with another way to open models: tests open nothing.
pub(super) fn start_with(
    mut settings: Settings,
    opener: impl FnOnce(Arc<Settings>) -> Box<dyn OpenModel>,
) -> StartedRepository {
    let publisher = Publisher::default();
    let (catalog, control) = (publisher.catalog.clone(), ClientControl::from(&settings));
    // The other half is for models that load others while they load.
    let most = Semaphore::MAX_PERMITS / 2;
    let permits = Arc::new(Semaphore::new(settings.threads.clamp(1, most)));
    let mut shared = None;
    let actor = RepositoryActor::create(|ctx| {
        settings.backend.lookup = Some(Arc::new(ModelLookup {
            actor: ctx.address().downgrade(),
            catalog: Arc::downgrade(&catalog),
            control,
            permits: permits.clone(),
        }));
        let settings = shared.insert(Arc::new(settings)).clone();
        RepositoryActor::new(LoadContext {
            settings: settings.clone(),
            opener: opener(settings),
            publisher,
            permits,
        })
    });
    let settings = shared.expect("the closure above has set it");
    let client = RepositoryClient { actor, control, catalog: catalog.clone(), within: None };
    let initial = initial(client.clone(), settings);
    StartedRepository {
        repository: Repository { catalog, control: Arc::new(client) },
        initial: Box::pin(initial),
    }
}

/// Loads what the command line asks for.
async fn initial(client: RepositoryClient, settings: Arc<Settings>) -> Summary {
    let scratch = settings.scratch.clone();
    let swept = spawn_blocking(move || overlay::sweep(&scratch)).await;
    swept.unwrap_or_else(|error| tracing::warn!("old files of load requests stay: {error}"));
    let watched = match settings.watch {
        true => {
            let settings = settings.clone();
            spawn_blocking(move || watch::look(&settings)).await.ok()
        }
        false => None,
    };
    let outcome = client.run(initial_action(&settings)).await;
    if let Some(known) = watched {
        actix_rt::spawn(Watch::new(&client, settings.clone(), known).run());
    }
    match outcome {
        Ok(outcome) => {
            let catalog = client.catalog.load();
            let is_empty = catalog.entries.is_empty() && outcome.problems.is_empty();
            if let (true, Some(text)) = (is_empty, scan::emptiness(&settings.repositories)) {
                tracing::warn!("{text}");
            }
            summary::summary(&catalog, &outcome)
        }
        Err(error) => {
            tracing::error!("{error}");
            Summary::default()
        }
    }
}

fn initial_action(settings: &Settings) -> Action {
    let is_all = settings.load_models.iter().any(|name| name == "*");
    if settings.mode == ControlMode::None || is_all {
        return Action::LoadAll;
    }
    let models = settings.load_models.iter();
    Action::Load(models.map(|name| (name.as_str().into(), Overrides::default())).collect())
}

/// A repository given twice is meant once; otherwise none of its models would be unique.
fn distinct(settings: &Settings) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut repositories = settings.repositories.clone();
    repositories.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    repositories
}
