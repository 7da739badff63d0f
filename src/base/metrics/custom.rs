//! Custom metric families, made by models at run time: counters, gauges and histograms under any
//! labels.

mod check;
mod value;

use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus::proto::{Metric, MetricFamily, MetricType};

use self::value::Value;
pub use self::value::{MetricChange, MetricKind, MetricLabels};
use super::proto::label;
use crate::error::{Error, Result};

/// Metrics of one family at most: labels taken from what clients send must not fill the memory.
const MAX_SERIES: usize = 10_000;

/// Families of one server at most.
const MAX_FAMILIES: usize = 1_000;

/// All custom families of a server; clones share them.
#[derive(Clone, Default)]
pub(super) struct CustomFamilies(Arc<Mutex<BTreeMap<Arc<str>, FamilyEntry>>>);

struct FamilyEntry {
    kind: MetricKind,
    help: String,
    /// Invariant: the number of `CustomFamily` handles; the last one removes the entry.
    users: usize,
    series: BTreeMap<MetricLabels, MetricEntry>,
}

struct MetricEntry {
    /// Invariant: the number of `CustomSeries` handles; the last one removes the metric.
    users: usize,
    value: Arc<Mutex<Value>>,
}

/// A handle that keeps a family registered; the family is shown while it has metrics.
pub struct CustomFamily {
    name: Arc<str>,
    kind: MetricKind,
    of: CustomFamilies,
}

/// A handle that keeps one metric of a family registered; handles of the same labels share its
/// value.
pub struct CustomSeries {
    labels: MetricLabels,
    value: Arc<Mutex<Value>>,
    family: CustomFamily,
}

impl CustomFamilies {
    /// Opens the family of that name; the help of the first one stays.
    pub(super) fn open(&self, name: &str, help: &str, kind: MetricKind) -> Result<CustomFamily> {
        let mut families = self.0.lock();
        check::name(name)?;
        check::clash(|name| families.get(name).map(|entry| entry.kind), name, kind)?;
        if MAX_FAMILIES <= families.len() && !families.contains_key(name) {
            return Err(Error::unavailable(format!(
                "there are {} families of metrics already, more are not kept",
                families.len()
            )));
        }
        let name: Arc<str> = name.into();
        let new = || FamilyEntry { kind, help: help.to_owned(), users: 0, series: BTreeMap::new() };
        let entry = families.entry(name.clone()).or_insert_with(new);
        if entry.kind != kind {
            return Err(Error::invalid(format!(
                "Family name already exists with different type: '{name}' is a {}, asked for as \
                 a {}",
                entry.kind.name(),
                kind.name()
            )));
        }
        entry.users += 1;
        Ok(CustomFamily { name, kind, of: self.clone() })
    }

    /// The families that have metrics, at this moment.
    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let families = self.0.lock();
        let used = families.iter().filter(|(_, entry)| !entry.series.is_empty());
        used.map(|(name, entry)| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_string());
            family.set_help(entry.help.clone());
            family.set_field_type(match entry.kind {
                MetricKind::Counter => MetricType::COUNTER,
                MetricKind::Gauge => MetricType::GAUGE,
                MetricKind::Histogram => MetricType::HISTOGRAM,
            });
            let metric = |(labels, kept): (&MetricLabels, &MetricEntry)| {
                let labels = labels.iter().map(|(name, value)| label(name, value)).collect();
                kept.value.lock().metric(entry.kind, Metric::from_label(labels))
            };
            family.set_metric(entry.series.iter().map(metric).collect());
            family
        })
        .collect()
    }
}

impl CustomFamily {
    /// The kind of its metrics.
    pub fn kind(&self) -> MetricKind {
        self.kind
    }

    /// Opens the metric with these labels; a new one begins at zero. Histograms need `buckets`,
    /// upper bounds in rising order; those of the first handle stay.
    pub fn series(&self, labels: MetricLabels, buckets: Option<&[f64]>) -> Result<CustomSeries> {
        check::labels(&labels, self.kind)?;
        let new = Value::new(self.kind, buckets)?;
        let mut families = self.of.0.lock();
        let entry = families.get_mut(&self.name).expect("it is there as long as it is used");
        let count = entry.series.len();
        let kept = match entry.series.entry(labels.clone()) {
            btree_map::Entry::Occupied(kept) => kept.into_mut(),
            btree_map::Entry::Vacant(_) if MAX_SERIES <= count => {
                return Err(Error::unavailable(format!(
                    "family '{}' has {count} metrics already, more are not kept",
                    self.name
                )));
            }
            btree_map::Entry::Vacant(place) => {
                place.insert(MetricEntry { users: 0, value: Arc::new(Mutex::new(new)) })
            }
        };
        kept.users += 1;
        let value = kept.value.clone();
        entry.users += 1;
        let (name, kind, of) = (self.name.clone(), self.kind, self.of.clone());
        Ok(CustomSeries { labels, value, family: CustomFamily { name, kind, of } })
    }
}

impl Drop for CustomFamily {
    fn drop(&mut self) {
        let mut families = self.of.0.lock();
        let Some(entry) = families.get_mut(&self.name) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            families.remove(&self.name);
        }
    }
}

impl CustomSeries {
    /// Changes the value. An error if the kind does not support the operation.
    pub fn change(&self, change: MetricChange) -> Result<()> {
        self.value.lock().change(self.family.kind, change)
    }

    /// The value of a counter or a gauge.
    pub fn value(&self) -> Result<f64> {
        self.value.lock().number(self.family.kind)
    }
}

impl Drop for CustomSeries {
    fn drop(&mut self) {
        let mut families = self.family.of.0.lock();
        // The family goes when its own field is dropped.
        let entry = families.get_mut(&self.family.name);
        let Some(series) = entry.map(|it| &mut it.series) else { return };
        let Some(kept) = series.get_mut(&self.labels) else { return };
        kept.users -= 1;
        if kept.users == 0 {
            series.remove(&self.labels);
        }
    }
}

#[cfg(test)]
mod tests;
