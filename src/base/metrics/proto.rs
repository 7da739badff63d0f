//! Builds Prometheus's metric messages from numbers.

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Quantile,
    Summary,
};

use crate::statistics::HistogramSnapshot;

/// A label pair.
pub fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

/// Label pairs.
pub fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<LabelPair> {
    pairs.into_iter().map(|(name, value)| label(name, value)).collect()
}

/// A counter.
pub fn counter(labels: Vec<LabelPair>, value: f64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value);
    let mut metric = Metric::from_label(labels);
    metric.set_counter(counter);
    metric
}

/// A gauge.
pub fn gauge(labels: Vec<LabelPair>, value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = Metric::from_label(labels);
    metric.set_gauge(gauge);
    metric
}

/// A family of one counter without labels.
pub fn only_counter(name: &str, help: &str, value: f64) -> MetricFamily {
    family(name, help, MetricType::COUNTER, [counter(Vec::new(), value)])
}

/// A family of one gauge without labels.
pub fn only_gauge(name: &str, help: &str, value: f64) -> MetricFamily {
    family(name, help, MetricType::GAUGE, [gauge(Vec::new(), value)])
}

/// A histogram; the encoder adds the infinite bound.
pub fn histogram(labels: Vec<LabelPair>, snapshot: &HistogramSnapshot) -> Metric {
    let bucket = |(bound, count): &(f64, u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(*count);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_bucket(snapshot.buckets.iter().map(bucket).collect());
    histogram.set_sample_sum(snapshot.sum);
    histogram.set_sample_count(snapshot.count);
    let mut metric = Metric::from_label(labels);
    metric.set_histogram(histogram);
    metric
}

/// A summary: quantiles as pairs of rank and value, the number of values, and their sum.
pub fn summary(
    labels: Vec<LabelPair>,
    quantiles: impl IntoIterator<Item = (f64, f64)>,
    count: u64,
    sum: f64,
) -> Metric {
    let quantile = |(rank, value)| {
        let mut quantile = Quantile::default();
        quantile.set_quantile(rank);
        quantile.set_value(value);
        quantile
    };
    let mut summary = Summary::default();
    summary.set_quantile(quantiles.into_iter().map(quantile).collect());
    summary.set_sample_count(count);
    summary.set_sample_sum(sum);
    let mut metric = Metric::from_label(labels);
    metric.set_summary(summary);
    metric
}

/// A family with its name and help.
pub fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    series: impl IntoIterator<Item = Metric>,
) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(series.into_iter().collect());
    family
}
