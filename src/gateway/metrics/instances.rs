//! Metrics of the instances of each model: how many there are, and how often that has changed while
//! the model served.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use troupe_base::{metrics::proto, model::Model};

const INSTANCES: (&str, &str) = ("troupe_instances", "Number of instances of a model, up or not");

const SCALINGS: (&str, &str) = (
    "troupe_instance_scalings_total",
    "Number of changes of how many instances a model has, without another load",
);

/// Of each of these models, which have labels.
pub(super) fn families(models: &[(Vec<LabelPair>, &Model)]) -> [MetricFamily; 2] {
    let counts = models.iter().map(|(labels, it)| (labels, it.health.instances().1));
    let counts = counts.filter(|(_, count)| *count != 0);
    let counts = counts.map(|(labels, count)| proto::gauge(labels.clone(), count as f64));
    let scalings = models.iter().filter(|(_, it)| may_change(it)).flat_map(|(labels, it)| {
        let counters = &it.stats.scalings;
        [("up", &counters.up), ("down", &counters.down)].map(|(direction, count)| {
            let direction = proto::label("direction", direction);
            let labels = labels.iter().cloned().chain([direction]).collect();
            proto::counter(labels, count.load(Relaxed) as f64)
        })
    });
    [
        proto::family(INSTANCES.0, INSTANCES.1, MetricType::GAUGE, counts),
        proto::family(SCALINGS.0, SCALINGS.1, MetricType::COUNTER, scalings),
    ]
}

/// Does it follow its queue, or has it changed before?
fn may_change(model: &Model) -> bool {
    let counters = &model.stats.scalings;
    let has_changed = 0 < counters.up.load(Relaxed) + counters.down.load(Relaxed);
    has_changed || model.shown_config().instance_groups.iter().any(|it| it.scaling.is_some())
}
