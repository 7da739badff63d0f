//! Metrics of one model: bounds of the histogram of its first responses.

use super::report::ConfigReport;
use troupe_proto::inference::{
    self, model_metrics::metric_control, model_metrics::metric_control::MetricOptions,
};

/// The one family whose bounds can be chosen.
const FIRST_RESPONSE_FAMILY: &str = "nv_inference_first_response_histogram_ms";

/// The bounds in milliseconds; `None` leaves them as they are.
pub(super) fn first_response_bounds(
    config: &inference::ModelConfig,
    report: &mut ConfigReport<'_>,
) -> Option<Vec<f64>> {
    let mut bounds = None;
    let controls = config.model_metrics.iter().flat_map(|it| &it.metric_control);
    for (index, control) in controls.enumerate() {
        let path = format!("model_metrics.metric_control[{index}]");
        let Some(identifier) = &control.metric_identifier else {
            report.add(&path, "metric control must specify 'metric_identifier'");
            continue;
        };
        if identifier.family.is_empty() {
            let path = format!("{path}.metric_identifier");
            report.add(&path, "metric identifier must specify non-empty 'family'");
        }
        let Some(MetricOptions::HistogramOptions(options)) = &control.metric_options else {
            report.add(&path, "metric control must specify 'histogram_options'");
            continue;
        };
        buckets(options, &format!("{path}.histogram_options"), report);
        if identifier.family == FIRST_RESPONSE_FAMILY {
            bounds = Some(options.buckets.clone());
        } else if !identifier.family.is_empty() {
            tracing::warn!(
                "Metric family '{}' in 'metric_identifier' is not a customizable metric in Triton \
                 core.",
                identifier.family
            );
        }
    }
    bounds
}

fn buckets(options: &metric_control::HistogramOptions, path: &str, report: &mut ConfigReport<'_>) {
    let buckets = &options.buckets;
    if buckets.is_empty() {
        report.add(path, "histogram options must specify non-empty 'buckets'");
    } else if !buckets.is_sorted_by(|a, b| a < b) || buckets.iter().any(|bound| bound.is_nan()) {
        let text = format!("'buckets' must be in rising order, each once, got {buckets:?}");
        report.add(&format!("{path}.buckets"), text);
    }
}
