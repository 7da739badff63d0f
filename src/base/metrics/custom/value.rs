//! The value of a custom metric, and the operations of its kind.

use std::collections::BTreeMap;

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, Metric};

use crate::error::{Error, Result};

/// Labels of one metric, by name.
pub type MetricLabels = BTreeMap<String, String>;

/// The kind of a family's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Grows, shrinks and is set.
    Gauge,
    /// Counts observations by size.
    Histogram,
}

/// An operation on a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricChange {
    /// For counters, where it must not be negative, and for gauges.
    Add(f64),
    /// For gauges.
    Set(f64),
    /// For histograms.
    Observe(f64),
}

/// The value of one metric.
pub(super) enum Value {
    Number(f64),
    Histogram {
        /// Upper bounds in rising order, without the infinite one.
        bounds: Vec<f64>,
        /// Values by bucket, not cumulative; one more than the bounds.
        counts: Vec<u64>,
        sum: f64,
    },
}

impl MetricKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }

    fn does_not_support(self, what: &str) -> Error {
        let kind = self.name().to_ascii_uppercase();
        Error::unsupported(format!("TRITONSERVER_METRIC_KIND_{kind} does not support {what}"))
    }
}

impl Value {
    pub(super) fn new(kind: MetricKind, buckets: Option<&[f64]>) -> Result<Value> {
        match (kind, buckets) {
            (MetricKind::Histogram, None) => {
                Err(Error::invalid("Failed to create metric. Missing required buckets."))
            }
            (MetricKind::Histogram, Some(buckets)) => {
                let is_rising = buckets.is_sorted_by(|a, b| a < b);
                if !is_rising || buckets.iter().any(|it| it.is_nan()) {
                    return Err(Error::invalid("Bucket Boundaries must be strictly sorted"));
                }
                let bounds: Vec<f64> =
                    buckets.iter().copied().filter(|it| *it < f64::INFINITY).collect();
                Ok(Value::Histogram { counts: vec![0; bounds.len() + 1], bounds, sum: 0.0 })
            }
            (_, Some(_)) => {
                Err(Error::invalid("Failed to create metric. Unexpected buckets found."))
            }
            (_, None) => Ok(Value::Number(0.0)),
        }
    }

    pub(super) fn change(&mut self, kind: MetricKind, change: MetricChange) -> Result<()> {
        match (self, change) {
            (Value::Number(_), MetricChange::Add(more))
                if kind == MetricKind::Counter && (more < 0.0 || more.is_nan()) =>
            {
                return Err(Error::invalid(
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by \
                     non-negative values.",
                ));
            }
            (Value::Number(value), MetricChange::Add(more)) => *value += more,
            (Value::Number(value), MetricChange::Set(new)) if kind == MetricKind::Gauge => {
                *value = new
            }
            (Value::Histogram { bounds, counts, sum }, MetricChange::Observe(seen)) => {
                counts[bounds.partition_point(|it| *it < seen)] += 1;
                *sum += seen;
            }
            (_, MetricChange::Add(_)) => return Err(kind.does_not_support("Increment")),
            (_, MetricChange::Set(_)) => return Err(kind.does_not_support("Set")),
            (_, MetricChange::Observe(_)) => return Err(kind.does_not_support("Observe")),
        }
        Ok(())
    }

    pub(super) fn number(&self, kind: MetricKind) -> Result<f64> {
        match self {
            Value::Number(value) => Ok(*value),
            Value::Histogram { .. } => Err(kind.does_not_support("Value")),
        }
    }

    /// The value as Prometheus's message.
    pub(super) fn metric(&self, kind: MetricKind, mut metric: Metric) -> Metric {
        match self {
            Value::Number(value) if kind == MetricKind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(*value);
                metric.set_counter(counter);
            }
            Value::Number(value) => {
                let mut gauge = Gauge::default();
                gauge.set_value(*value);
                metric.set_gauge(gauge);
            }
            Value::Histogram { bounds, counts, sum } => {
                let mut total = 0;
                // The encoder adds the infinite bound.
                let buckets = bounds.iter().zip(counts).map(|(bound, count)| {
                    total += count;
                    let mut bucket = Bucket::default();
                    bucket.set_upper_bound(*bound);
                    bucket.set_cumulative_count(total);
                    bucket
                });
                let mut histogram = Histogram::default();
                histogram.set_bucket(buckets.collect());
                histogram.set_sample_sum(*sum);
                histogram.set_sample_count(counts.iter().sum());
                metric.set_histogram(histogram);
            }
        }
        metric
    }
}
