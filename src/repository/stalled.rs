//! Logs models whose requests are stalled: the oldest has not moved for a while.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;

use super::Catalog;
use troupe_base::model::Model;

/// Checks within the time a request may rest.
const CHECKS_PER_LIMIT: u32 = 4;

/// A version of a model, by its name.
type ModelVersion = (Arc<str>, i64);

/// Logs a line for each model whose oldest request has not moved for `limit`, once until they all
/// move again. Never ends.
pub async fn watch_stalled(catalog: Arc<ArcSwap<Catalog>>, limit: Duration) {
    let mut ticks = tokio::time::interval(limit / CHECKS_PER_LIMIT);
    let mut stalled = BTreeSet::new();
    loop {
        ticks.tick().await;
        let catalog = catalog.load_full();
        for line in newly_stalled(catalog.ready_models(), &mut stalled, limit, Instant::now()) {
            tracing::warn!("{line}");
        }
    }
}

/// The lines to log; `stalled` are the versions that were logged already.
fn newly_stalled<'a>(
    models: impl Iterator<Item = &'a Arc<Model>>,
    stalled: &mut BTreeSet<ModelVersion>,
    limit: Duration,
    now: Instant,
) -> Vec<String> {
    let before = std::mem::take(stalled);
    let mut lines = Vec::new();
    for model in models {
        let oldest = model.stats.in_flight.turn(now);
        // A stalled step is reported itself; an ensemble of slow steps still moves.
        let is_ensemble = model.config.ensemble.is_some();
        let is_stalled = |since| !is_ensemble && limit <= now - since;
        let Some(oldest) = oldest.filter(|oldest| is_stalled(oldest.since)) else { continue };
        let version = (model.name().clone(), model.version);
        if !before.contains(&version) {
            lines.push(format!(
                "model '{}' version {}: its oldest request has not moved for {} s ({} not answered, \
                 {} of them not executed yet)",
                version.0,
                version.1,
                (now - oldest.since).as_secs(),
                oldest.count,
                model.stats.pending(),
            ));
        }
        stalled.insert(version);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::{
        config::read_text,
        model::{Health, Infer, ModelParts},
        request::{Reply, Request},
        statistics::{RequestGuard, Statistics},
    };

    struct Never;

    impl Infer for Never {
        fn infer(&self, _: Request, _: Reply) {}
    }

    fn model() -> Arc<Model> {
        let text = "name: 'm' backend: 'native'
            input { name: 'x' data_type: TYPE_FP32 dims: [1] }
            output { name: 'y' data_type: TYPE_FP32 dims: [1] }";
        let config = read_text(text, "config.pbtxt").unwrap().finish(&Default::default()).unwrap();
        let parts = ModelParts {
            config: Arc::new(config),
            version: 3,
            stats: Arc::new(Statistics::default()),
            health: Arc::new(Health::default()),
            steps: Vec::new(),
        };
        Arc::new(Model::new(parts, Arc::new(Never)))
    }

    #[test]
    fn a_stall_is_logged_once_until_everything_moves_again() {
        let model = model();
        let begin = Instant::now();
        let mut stalled = BTreeSet::new();
        let mut check = |seconds: u64, expected: &[&str]| {
            let now = begin + Duration::from_secs(seconds);
            let limit = Duration::from_secs(10);
            let lines = newly_stalled([&model].into_iter(), &mut stalled, limit, now);
            assert_eq!(lines, expected, "after {seconds} s");
        };
        check(0, &[]);
        let ticket = RequestGuard::new(model.stats.clone(), Instant::now());
        check(5, &[]);
        let line = "model 'm' version 3: its oldest request has not moved for 10 s (1 not \
                    answered, 0 of them not executed yet)";
        check(10, &[line]);
        check(15, &[]);
        drop(ticket);
        check(20, &[]);
        let _ticket = RequestGuard::new(model.stats.clone(), Instant::now());
        check(25, &[]);
        check(30, &[line]);
    }
}
