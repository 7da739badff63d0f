//! Warms models up while they load.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use tokio::task::spawn_blocking;

use crate::disk;
use troupe_base::{
    config::Problem,
    error::Result,
    model::{
        Infer, ModelParts,
        warmup::{self, WarmupSample},
    },
    request::Pending,
};
use troupe_engine::batcher::Mailbox;

/// A warm-up that takes longer is worth a line in the log.
const MIN_LOGGED_WARMUP: Duration = Duration::from_secs(1);

/// Warms up every instance of a model.
pub(super) async fn single(
    opened: &Mailbox,
    samples: &[WarmupSample],
    name: &str,
    version: i64,
) -> Result<()> {
    timed(name, version, opened.warm_up(samples)).await
}

/// Warms up the way through all models of an ensemble; by themselves they are warm.
pub(super) async fn ensemble(
    ensemble: &dyn Infer,
    parts: &ModelParts,
    model_dir: PathBuf,
) -> Result<(), Vec<String>> {
    let config = parts.config.clone();
    let samples = spawn_blocking(move || disk::warmup::samples(&config, &model_dir)).await;
    let samples = samples.map_err(|_| vec!["reading warmup samples panicked".to_owned()])?;
    let samples = samples.map_err(|problems| messages(&problems))?;
    let name = &parts.config.name;
    let run = |group: Vec<Pending>| {
        for pending in group {
            ensemble.infer(pending.request, pending.reply);
        }
    };
    let target = format!("ensemble '{name}'");
    let warm = timed(name, parts.version, warmup::run(&samples, &target, run)).await;
    warm.map_err(|error| vec![error.to_string()])
}

fn messages(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(Problem::message).collect()
}

/// Logs how long a warm-up took, if that was noticeable.
async fn timed(name: &str, version: i64, warming: impl Future<Output = Result<()>>) -> Result<()> {
    let since = Instant::now();
    warming.await?;
    let took = since.elapsed();
    if MIN_LOGGED_WARMUP <= took {
        tracing::info!("warmed up `{name}` version {version} in {:.2} s", took.as_secs_f64());
    }
    Ok(())
}
