//! Metrics of each model with sequences: its slots, free and taken, and the sequences that wait for one.

use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use troupe_base::{metrics::proto, statistics::SequenceUsage};

const SLOTS: (&str, &str) =
    ("troupe_sequence_slots", "Sequence slots of a model, by whether a sequence has them");
const BACKLOG: (&str, &str) =
    ("troupe_sequence_backlog", "Sequences that wait until a slot of the model is free");

/// Their families, those without series included; `models` have their labels.
pub(super) fn families(models: &[(&[LabelPair], SequenceUsage)]) -> [MetricFamily; 2] {
    let slots = models.iter().flat_map(|(labels, usage)| {
        let free = usage.slots.saturating_sub(usage.taken);
        [("taken", usage.taken), ("free", free)].map(|(state, count)| {
            let labels = labels.iter().cloned().chain([proto::label("state", state)]).collect();
            proto::gauge(labels, count as f64)
        })
    });
    let backlog =
        models.iter().map(|(labels, usage)| proto::gauge(labels.to_vec(), usage.backlog as f64));
    [
        proto::family(SLOTS.0, SLOTS.1, MetricType::GAUGE, slots),
        proto::family(BACKLOG.0, BACKLOG.1, MetricType::GAUGE, backlog),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_the_backlog_are_shown_for_each_model() {
        let labels = proto::labels([("model", "m")]);
        let usage = SequenceUsage { slots: 8, taken: 3, backlog: 2 };
        let families = families(&[(&labels, usage)]);
        let text = prometheus::TextEncoder::new().encode_to_string(&families).unwrap();
        for line in [
            "troupe_sequence_slots{model=\"m\",state=\"taken\"} 3",
            "troupe_sequence_slots{model=\"m\",state=\"free\"} 5",
            "troupe_sequence_backlog{model=\"m\"} 2",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
}
