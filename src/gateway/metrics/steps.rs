//! How many requests wait for each step of an ensemble.

use std::{collections::BTreeMap, sync::Arc};

use prometheus::proto::{MetricFamily, MetricType};

use troupe_base::{
    config::StepConfig,
    metrics::{Metrics, proto, step_labels},
    model::Model,
};
use troupe_repository::Catalog;

const QUEUE_DEPTH: (&str, &str) = (
    "troupe_ensemble_step_queue_depth",
    "Requests that wait for room in an ensemble's step, or in the queue of the model it runs, which \
     others may ask too",
);

/// Versions of an ensemble share the series of a step.
type StepKey<'a> = (&'a str, usize, &'a str);

/// One gauge per step.
pub(super) fn families(catalog: &Catalog, metrics: &Metrics) -> Vec<MetricFamily> {
    let mut depths: BTreeMap<StepKey<'_>, u64> = BTreeMap::new();
    for model in catalog.ready_models() {
        for (index, step) in model.config.ensemble.iter().flat_map(|it| &it.steps).enumerate() {
            let Some(runs) = running(model, index, step) else { continue };
            // The queue is one and the same for versions that run the same version of the model.
            let pending = runs.stats.pending();
            let depth = depths.entry((model.name(), index, &step.model)).or_default();
            *depth = pending.max(*depth);
        }
    }
    let series = depths.into_iter().map(|((ensemble, index, model), pending)| {
        let depth = pending + metrics.waiting(ensemble, index, model);
        proto::gauge(step_labels(ensemble, index, model), depth as f64)
    });
    vec![proto::family(QUEUE_DEPTH.0, QUEUE_DEPTH.1, MetricType::GAUGE, series)]
}

/// The model a step runs.
fn running<'a>(ensemble: &'a Model, index: usize, step: &StepConfig) -> Option<&'a Arc<Model>> {
    let runs = |it: &&Arc<Model>| **it.name() == *step.model;
    let at_its_place = ensemble.steps.get(index).filter(runs);
    at_its_place.or_else(|| ensemble.steps.iter().find(runs))
}
