//! What is on disk: folders of models and versions, configs, files of labels and warm-up samples.
//!
//! A source of models that is not a folder (an object store) would be fetched into one before
//! [`scan::folders`]: everything here reads folders, and [`scan::Stamp`] says whether one changed.

pub(super) mod definition;
pub(super) mod fingerprint;
pub(super) mod initial_state;
pub(super) mod labels;
pub(super) mod misnamed;
pub(super) mod overlay;
pub(super) mod pipeline;
mod raw_file;
pub(super) mod scan;
pub(super) mod snapshot;
pub(super) mod warmup;
