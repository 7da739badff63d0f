//! The counter of tensor bytes copied into Python workers and out of them.

use super::{
    custom::{CustomSeries, MetricChange, MetricKind, MetricLabels},
    registry::Metrics,
};

const NAME: &str = "troupe_python_bytes_copied_total";
const HELP: &str = "Bytes of tensors that were copied on their way into workers of a Python model \
                    and out of them; what is shared is not copied";

/// The copy counters of one model; shown as long as anybody holds them.
pub struct CopiedBytes {
    to_worker: CustomSeries,
    from_worker: CustomSeries,
}

impl CopiedBytes {
    /// Counts bytes copied into a segment, a frame, or from shared memory into the worker's own.
    pub fn to_worker(&self, bytes: usize) {
        add(&self.to_worker, bytes);
    }

    /// Counts bytes that the worker copied into a segment or a frame.
    pub fn from_worker(&self, bytes: usize) {
        add(&self.from_worker, bytes);
    }
}

fn add(series: &CustomSeries, bytes: usize) {
    if 0 < bytes {
        series.change(MetricChange::Add(bytes as f64)).expect("counters take what is not negative");
    }
}

impl Metrics {
    /// The copy counters of `model`, shared by all its versions and instances.
    pub fn copied_bytes(&self, model: &str) -> CopiedBytes {
        const VALID: &str = "the names are constants, and valid";
        let family = self.server_family(NAME, HELP, MetricKind::Counter).expect(VALID);
        let series = |direction: &str| {
            let labels = [("direction", direction), ("model", model)];
            let labels: MetricLabels =
                labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
            family.series(labels, None)
        };
        CopiedBytes {
            to_worker: series("to_worker").expect(VALID),
            from_worker: series("from_worker").expect(VALID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_by_model_and_direction() {
        let metrics = Metrics::new();
        let copied = metrics.copied_bytes("m");
        let same = metrics.copied_bytes("m");
        copied.to_worker(3);
        same.to_worker(4);
        same.from_worker(0);
        let text = prometheus::TextEncoder::new().encode_to_string(&metrics.gather()).unwrap();
        for line in [
            r#"troupe_python_bytes_copied_total{direction="from_worker",model="m"} 0"#,
            r#"troupe_python_bytes_copied_total{direction="to_worker",model="m"} 7"#,
        ] {
            assert!(text.lines().any(|it| it == line), "no `{line}` in\n{text}");
        }
        drop((copied, same));
        assert!(metrics.gather().is_empty());
    }

    #[test]
    fn models_cannot_have_families_of_the_servers_names() {
        for name in ["nv_mine", NAME] {
            let error = Metrics::new().family(name, "", MetricKind::Gauge).err().unwrap();
            let text = format!("'{name}' cannot be a family of a model: names that begin with");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }
}
