//! What families and labels may be called.

use std::{collections::BTreeMap, sync::Arc};

use super::{Entry, MetricKind, MetricLabels};
use crate::error::{Error, Result};

/// Bytes of the longest value of a label: what clients send must not fill the memory.
pub(super) const LONGEST_LABEL: usize = 4096;

fn is_word(text: &str, also: char) -> bool {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == also;
    text.starts_with(|it: char| !it.is_ascii_digit()) && text.chars().all(is_part)
}

pub(super) fn name(name: &str) -> Result<()> {
    if is_word(name, ':') {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "Invalid metric name: '{name}' must consist of letters, digits, '_' and ':', and not begin \
         with a digit"
    )))
}

/// A histogram writes lines of three more names than its own.
pub(super) fn clash(
    families: &BTreeMap<Arc<str>, Entry>,
    name: &str,
    kind: MetricKind,
) -> Result<()> {
    for suffix in ["_bucket", "_count", "_sum"] {
        let is_histogram =
            |it: &&str| families.get(*it).is_some_and(|it| it.kind == MetricKind::Histogram);
        let parent = name.strip_suffix(suffix).filter(is_histogram);
        let child = format!("{name}{suffix}");
        let child =
            (kind == MetricKind::Histogram && families.contains_key(&*child)).then_some(child);
        let (line, histogram) = match (parent, &child) {
            (Some(parent), _) => (name, parent),
            (None, Some(child)) => (&**child, name),
            (None, None) => continue,
        };
        return Err(Error::invalid(format!(
            "'{line}' cannot be a family beside the histogram '{histogram}', which writes lines of \
             that name"
        )));
    }
    Ok(())
}

pub(super) fn labels(labels: &MetricLabels, kind: MetricKind) -> Result<()> {
    for (name, value) in labels {
        let is_reserved = name.starts_with("__") || kind == MetricKind::Histogram && name == "le";
        if is_reserved || !is_word(name, '_') {
            return Err(Error::invalid(format!(
                "Invalid label name: '{name}' must consist of letters, digits and '_', and not \
                 begin with a digit or '__'; 'le' belongs to histograms"
            )));
        }
        if LONGEST_LABEL < value.len() {
            return Err(Error::invalid(format!(
                "label '{name}' has a value of {} bytes, at most {LONGEST_LABEL} are kept",
                value.len()
            )));
        }
    }
    Ok(())
}
