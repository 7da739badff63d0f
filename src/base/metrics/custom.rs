//! CustomFamilies of metrics made at run time: counters, gauges and histograms under any labels.

mod check;
mod value;

use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus::proto::{Metric, MetricFamily, MetricType};

use self::value::Value;
pub use self::value::{MetricChange, MetricKind};
use super::proto::label;
use crate::error::{Error, Result};

/// Metrics a family may have: labels taken from what clients send must not fill the memory.
const MOST_SERIES: usize = 10_000;

/// MetricLabels of one metric, by name.
pub type MetricLabels = BTreeMap<String, String>;

/// All families; clones share them.
#[derive(Clone, Default)]
pub(super) struct CustomFamilies(Arc<Mutex<BTreeMap<Arc<str>, Entry>>>);

struct Entry {
    kind: MetricKind,
    help: String,
    /// Invariant: counts the `CustomFamily` values; the last one takes the entry away.
    users: usize,
    series: BTreeMap<MetricLabels, Kept>,
}

struct Kept {
    /// Invariant: counts the `CustomSeries` values; the last one takes this away.
    users: usize,
    value: Arc<Mutex<Value>>,
}

/// The use of a family. It is shown while anybody uses it and it has metrics.
pub struct CustomFamily {
    name: Arc<str>,
    kind: MetricKind,
    of: CustomFamilies,
}

/// The use of one metric of a family; others who asked for the same labels share its value.
pub struct CustomSeries {
    labels: MetricLabels,
    value: Arc<Mutex<Value>>,
    family: CustomFamily,
}

impl CustomFamilies {
    /// The family of that name: the first one there was keeps its help.
    pub(super) fn open(&self, name: &str, help: &str, kind: MetricKind) -> Result<CustomFamily> {
        let mut families = self.0.lock();
        check::name(name)?;
        check::clash(&families, name, kind)?;
        let name: Arc<str> = name.into();
        let new = || Entry { kind, help: help.to_owned(), users: 0, series: BTreeMap::new() };
        let entry = families.entry(name.clone()).or_insert_with(new);
        if entry.kind != kind {
            return Err(Error::invalid(format!(
                "CustomFamily name already exists with different type: '{name}' is a {}, asked for as \
                 a {}",
                entry.kind.name(),
                kind.name()
            )));
        }
        entry.users += 1;
        Ok(CustomFamily { name, kind, of: self.clone() })
    }

    /// Those that have metrics, at this moment.
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
            let metric = |(labels, kept): (&MetricLabels, &Kept)| {
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
    /// What it counts.
    pub fn kind(&self) -> MetricKind {
        self.kind
    }

    /// The metric under these labels, which begins at zero unless there is one. Histograms need
    /// `buckets`, upper bounds in rising order, of which the first metric's hold.
    pub fn series(&self, labels: MetricLabels, buckets: Option<&[f64]>) -> Result<CustomSeries> {
        check::labels(&labels, self.kind)?;
        let new = Value::new(self.kind, buckets)?;
        let mut families = self.of.0.lock();
        let entry = families.get_mut(&self.name).expect("it is there as long as it is used");
        let count = entry.series.len();
        let kept = match entry.series.entry(labels.clone()) {
            btree_map::Entry::Occupied(kept) => kept.into_mut(),
            btree_map::Entry::Vacant(_) if MOST_SERIES <= count => {
                return Err(Error::unavailable(format!(
                    "family '{}' has {count} metrics already, more are not kept",
                    self.name
                )));
            }
            btree_map::Entry::Vacant(place) => {
                place.insert(Kept { users: 0, value: Arc::new(Mutex::new(new)) })
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
    /// Counts. An error if metrics of this kind do not do this.
    pub fn change(&self, change: MetricChange) -> Result<()> {
        self.value.lock().change(self.family.kind, change)
    }

    /// The number of a counter or a gauge.
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
