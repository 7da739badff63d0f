//! Checks the names of custom families and of their labels.

use super::value::{MetricKind, MetricLabels};
use crate::error::{Error, Result};

/// Bytes of a label's value at most: what clients send must not fill the memory.
pub(super) const MAX_LABEL_BYTES: usize = 4096;

fn is_word(text: &str, also: char) -> bool {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == also;
    text.starts_with(|it: char| !it.is_ascii_digit()) && text.chars().all(is_part)
}

/// Refuses names that Prometheus does not allow.
pub(super) fn name(name: &str) -> Result<()> {
    if is_word(name, ':') {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "Invalid metric name: '{name}' must consist of letters, digits, '_' and ':', and not begin \
         with a digit"
    )))
}

/// Refuses names that a histogram's own lines would have. `kind_of` finds the kind of a family by
/// its name.
pub(super) fn clash(
    kind_of: impl Fn(&str) -> Option<MetricKind>,
    name: &str,
    kind: MetricKind,
) -> Result<()> {
    for suffix in ["_bucket", "_count", "_sum"] {
        let is_histogram = |name: &&str| kind_of(name) == Some(MetricKind::Histogram);
        let parent = name.strip_suffix(suffix).filter(is_histogram);
        let child = format!("{name}{suffix}");
        let is_clash = kind == MetricKind::Histogram && kind_of(&child).is_some();
        let (line, histogram) = match parent {
            Some(parent) => (name, parent),
            None if is_clash => (&*child, name),
            None => continue,
        };
        return Err(Error::invalid(format!(
            "'{line}' cannot be a family beside the histogram '{histogram}', which writes lines of \
             that name"
        )));
    }
    Ok(())
}

/// Refuses labels with invalid names or with values that are too long.
pub(super) fn labels(labels: &MetricLabels, kind: MetricKind) -> Result<()> {
    for (name, value) in labels {
        let is_reserved = name.starts_with("__") || kind == MetricKind::Histogram && name == "le";
        if is_reserved || !is_word(name, '_') {
            return Err(Error::invalid(format!(
                "Invalid label name: '{name}' must consist of letters, digits and '_', and not \
                 begin with a digit or '__'; 'le' belongs to histograms"
            )));
        }
        if MAX_LABEL_BYTES < value.len() {
            return Err(Error::invalid(format!(
                "label '{name}' has a value of {} bytes, at most {MAX_LABEL_BYTES} are kept",
                value.len()
            )));
        }
    }
    Ok(())
}
